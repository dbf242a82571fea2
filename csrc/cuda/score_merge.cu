// One warp a row: lanes merge parts that lie 32 apart, then the lanes are merged.
#include "cuda/score_state.cuh"

namespace refusion::cuda {
namespace {

constexpr int kThreads = 128, kRows = kThreads / 32;

// budget: registers 64, shared 0
__global__ void __launch_bounds__(kThreads)
    merge_parts(const ScoreState* parts, int64_t rows, int count, TokenChoice choice, TokenScores scores) {
  const int64_t row = int64_t(blockIdx.x) * kRows + warp_id();
  ScoreState state = empty_state();
  if (row < rows)
    for (int part = lane_id(); part < count; part += 32) merge_states(state, parts[row * count + part]);
  state = merge_lanes(state);
  if (row < rows && lane_id() == 0) deliver(state, RowChoice(choice, row), scores, row);
}

}  // namespace

int launch_merge(const ScoreState* parts, int64_t rows, int count, const TokenChoice& choice, const TokenScores& scores,
                 void* stream) {
  const dim3 blocks(unsigned(ceil_div<int64_t>(rows, kRows)));
  return launch(merge_parts, blocks, dim3(kThreads), 0, stream, parts, rows, count, choice, scores);
}

}  // namespace refusion::cuda
