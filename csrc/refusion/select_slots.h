// select_slots: slot confidences -> the slots to write now, ragged over sequences (paper section 3.2, "plan").
#pragma once
#include "refusion/dtype.h"

namespace refusion {

// How the scores of a slot's tokens become its confidence. `first` is the paper's rule.
enum class SlotRule : int32_t { first, mean, minimum };

struct SelectSlots {
  const float* scores;              // [slot_offsets[slots]] one per scored token; NaN counts as -infinity
  const int32_t* slot_offsets;      // [slots + 1] token range of each slot
  const int32_t* sequence_offsets;  // [sequences + 1] slot range of each sequence
  int64_t tokens, slots, sequences;
  float threshold;                  // a slot is chosen when its confidence is above it
  SlotRule rule;
  float* confidence;                // [slots]
  int32_t* chosen;                  // [slots] indices in the sequence, ascending, packed at sequence_offsets; rest -1
  int32_t* counts;                  // [sequences] number chosen: at least 1 for a sequence with slots
};

}  // namespace refusion
