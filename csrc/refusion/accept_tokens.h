// accept_tokens: which drafted tokens of each slot survive verification.
#pragma once
#include "refusion/dtype.h"

namespace refusion {

struct AcceptTokens {
  const float* probability;         // [tokens] of each draft given its predecessor; unused where accepted anyway
  const int64_t* token;             // [tokens] the drafts
  const int32_t* slot_offsets;      // [slots + 1] token range of each slot
  const int32_t* accepted_before;   // [slots] tokens 0 .. accepted_before are accepted whatever their probability
  const int32_t* sequence_offsets;  // [sequences + 1] slot range of each sequence
  const int64_t* eos_token_ids;     // [eos_count]
  int64_t tokens, slots, sequences, eos_count;
  float threshold;                  // a later token is accepted when above it, provided its predecessor is accepted
  int32_t* accepted;                // [slots] length of the accepted prefix
  int32_t* eos;                     // [slots] index within the slot of the first EOS in its accepted prefix, or -1
  int32_t* run;                     // [sequences] leading accepted tokens over the concatenation of its slots
};

}  // namespace refusion
