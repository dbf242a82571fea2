// One block a sequence: confidences, then an ordered compaction of the slots above the threshold.
#include "cuda/launchers.h"
#include "cuda/ranges.cuh"

namespace refusion::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

__device__ float confidence_of(const SelectSlots& op, int slot) {
  const Range tokens(op.slot_offsets, slot, op.tokens);
  double sum = 0;
  float least = INFINITY;
  for (int i = tokens.begin; i < tokens.end; ++i) {
    const float score = fmaxf(op.scores[i], -INFINITY);  // NaN counts as -inf
    if (op.rule == SlotRule::first) return score;
    sum += double(score);
    least = fminf(least, score);
  }
  if (tokens.length() == 0) return -INFINITY;
  return op.rule == SlotRule::mean ? float(sum / tokens.length()) : least;
}

struct Best {
  float confidence;
  int index;  // in the sequence; -1: none
};

__device__ __forceinline__ Best better(Best a, Best b) {
  const bool second = b.index >= 0 && (a.index < 0 || b.confidence > a.confidence ||
                                       (b.confidence == a.confidence && b.index < a.index));
  return second ? b : a;
}

__device__ __forceinline__ Best best_of_lanes(Best best) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2)
    best = better(best,
                  {__shfl_xor_sync(kAllLanes, best.confidence, lanes), __shfl_xor_sync(kAllLanes, best.index, lanes)});
  return best;
}

// budget: registers 48, shared 1024
__global__ void __launch_bounds__(kThreads) select_in_sequence(SelectSlots op) {
  SHARED_ARRAY(int, above_in_warp, [kWarps]);
  SHARED_ARRAY(Best, best_of_warp, [kWarps]);
  const Range slots(op.sequence_offsets, blockIdx.x, op.slots);
  const int begin = slots.begin, count = slots.length();
  int chosen = 0;
  Best best{-INFINITY, -1};
  for (int first = 0; first < count; first += kThreads) {
    const int index = first + int(threadIdx.x);
    const float confidence = index < count ? confidence_of(op, begin + index) : -INFINITY;
    if (index < count) {
      op.confidence[begin + index] = confidence;
      best = better(best, {confidence, index});
    }
    const bool above = index < count && confidence > op.threshold;
    const unsigned lanes = __ballot_sync(kAllLanes, above);
    if (lane_id() == 0) above_in_warp[warp_id()] = __popc(lanes);
    __syncthreads();
    int place = chosen + __popc(lanes & ((1u << lane_id()) - 1));
    for (int warp = 0; warp < kWarps; ++warp) {
      if (warp < warp_id()) place += above_in_warp[warp];
      chosen += above_in_warp[warp];
    }
    if (above) op.chosen[begin + place] = index;
    __syncthreads();
  }
  best = best_of_lanes(best);
  if (lane_id() == 0) best_of_warp[warp_id()] = best;
  __syncthreads();
  if (threadIdx.x == 0) {
    if (chosen == 0 && count > 0) {
      for (int warp = 0; warp < kWarps; ++warp) best = better(best, best_of_warp[warp]);
      op.chosen[begin] = best.index;
    }
    op.counts[blockIdx.x] = count > 0 ? max(chosen, 1) : 0;
  }
  for (int place = max(chosen, 1) + int(threadIdx.x); place < count; place += kThreads) op.chosen[begin + place] = -1;
}

}  // namespace

size_t workspace_bytes(const SelectSlots&, int) { return 0; }

int launch(const SelectSlots& op, const Launch& where) {
  if (op.sequences == 0) return cudaSuccess;
  return launch(select_in_sequence, dim3(unsigned(op.sequences)), dim3(kThreads), 0, where.stream, op);
}

}  // namespace refusion::cuda
