// One warp a sequence, one lane a slot.
#include "cuda/launchers.h"
#include "cuda/ranges.cuh"

namespace refusion::cuda {
namespace {

__device__ bool is_eos(const AcceptTokens& op, int64_t token) {
  bool found = false;
  for (int64_t i = 0; i < op.eos_count; ++i) found |= op.eos_token_ids[i] == token;
  return found;
}

// Length of the slot's accepted prefix; its first EOS in `eos`, or -1.
__device__ int accept_slot(const AcceptTokens& op, int begin, int length, int before, int* eos) {
  int count = 0;
  *eos = -1;
  while (count < length && (count <= before || op.probability[begin + count] > op.threshold)) {
    if (*eos < 0 && is_eos(op, op.token[begin + count])) *eos = count;
    ++count;
  }
  return count;
}

// budget: registers 64, shared 0
__global__ void __launch_bounds__(32) accept_in_sequence(AcceptTokens op) {
  const Range slots(op.sequence_offsets, blockIdx.x, op.slots);
  int run = 0;
  bool whole = true;  // every slot so far
  for (int base = slots.begin; base < slots.end; base += 32) {
    const int slot = base + lane_id();
    int accepted = 0, length = 0;
    if (slot < slots.end) {
      const Range tokens(op.slot_offsets, slot, op.tokens);
      int eos;
      length = tokens.length();
      accepted = accept_slot(op, tokens.begin, length, op.accepted_before[slot], &eos);
      op.accepted[slot] = accepted;
      op.eos[slot] = eos;
    }
    const unsigned broken = __ballot_sync(kAllLanes, accepted < length);
    const int end = broken != 0 ? __ffs(int(broken)) - 1 : 31;  // the last slot of the run
    int sum = whole && lane_id() <= end ? accepted : 0;
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
    run += sum;
    whole = whole && broken == 0;
  }
  if (lane_id() == 0) op.run[blockIdx.x] = run;
}

}  // namespace

size_t workspace_bytes(const AcceptTokens&, int) { return 0; }

int launch(const AcceptTokens& op, const Launch& where) {
  if (op.sequences == 0) return cudaSuccess;
  return launch(accept_in_sequence, dim3(unsigned(op.sequences)), dim3(32), 0, where.stream, op);
}

}  // namespace refusion::cuda
