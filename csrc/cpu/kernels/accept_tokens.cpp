#include "ops.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

bool is_eos(const AcceptTokens& op, int64_t token) {
  for (int64_t i = 0; i < op.eos_count; ++i)
    if (op.eos_token_ids[i] == token) return true;
  return false;
}

}  // namespace

void accept_tokens(const AcceptTokens& op) {
  for (int64_t slot = 0; slot < op.slots; ++slot) {
    const int32_t begin = op.slot_offsets[slot], length = op.slot_offsets[slot + 1] - begin;
    int32_t count = 0;
    op.eos[slot] = -1;
    for (; count < length; ++count) {
      if (count > op.accepted_before[slot] && !(op.probability[begin + count] > op.threshold)) break;
      if (op.eos[slot] < 0 && is_eos(op, op.token[begin + count])) op.eos[slot] = count;
    }
    op.accepted[slot] = count;
  }
  for (int64_t n = 0; n < op.sequences; ++n) {
    int32_t run = 0;
    for (int32_t slot = op.sequence_offsets[n]; slot < op.sequence_offsets[n + 1]; ++slot) {
      run += op.accepted[slot];
      if (op.accepted[slot] < op.slot_offsets[slot + 1] - op.slot_offsets[slot]) break;
    }
    op.run[n] = run;
  }
}

}  // namespace refusion::cpu::REFUSION_ISA
