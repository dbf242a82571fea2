#include <cmath>

#include "ops.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

float confidence_of(const SelectSlots& op, int64_t slot) {
  const int32_t begin = op.slot_offsets[slot], end = op.slot_offsets[slot + 1];
  if (begin >= end) return -INFINITY;
  double sum = 0;
  float least = INFINITY;
  for (int32_t i = begin; i < end; ++i) {
    const float score = std::isnan(op.scores[i]) ? -INFINITY : op.scores[i];
    if (op.rule == SlotRule::first) return score;
    sum += score;
    least = score < least ? score : least;
  }
  return op.rule == SlotRule::mean ? float(sum / (end - begin)) : least;
}

}  // namespace

void select_slots(const SelectSlots& op) {
  for (int64_t slot = 0; slot < op.slots; ++slot) {
    op.confidence[slot] = confidence_of(op, slot);
    op.chosen[slot] = -1;
  }
  for (int64_t n = 0; n < op.sequences; ++n) {
    const int32_t begin = op.sequence_offsets[n], end = op.sequence_offsets[n + 1];
    int32_t count = 0, best = begin;
    for (int32_t slot = begin; slot < end; ++slot) {
      if (op.confidence[slot] > op.threshold) op.chosen[begin + count++] = slot - begin;
      if (op.confidence[slot] > op.confidence[best]) best = slot;
    }
    if (!count && begin < end) op.chosen[begin + count++] = best - begin;
    op.counts[n] = count;
  }
}

}  // namespace refusion::cpu::REFUSION_ISA
