// score_hidden on tensor cores, for bfloat16 and half: 64 rows by 128 ids, three stages of cp.async over the width; the
// logits of a tile go from registers into the state of their row.
#pragma once
#include "cuda/score_hidden_part.cuh"

namespace refusion::cuda {

struct HiddenTiles {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kRows = 16 * kWarps, kIds = 128, kColumns = 64, kStages = 3;
  static constexpr int kStageElements = (kRows + kIds) * kColumns;
  static constexpr size_t kShared = size_t(kStages) * kStageElements * 2;

  // Chunks of 8 elements are swapped so that eight rows of one column lie in different banks.
  static __device__ __forceinline__ int place(int row, int chunk) { return row * kColumns + (chunk ^ (row & 7)) * 8; }
};

// One step: kColumns of the block's rows and of the ids of a tile; zeros outside.
template <class T>
__device__ __forceinline__ void load_step(const ScoreHidden& op, int64_t first_row, int64_t first_id, int64_t column,
                                          T* stage) {
  using S = HiddenTiles;
  constexpr int kChunks = S::kColumns / 8;
#pragma unroll 4  // addresses are what fills the registers
  for (int i = int(threadIdx.x); i < (S::kRows + S::kIds) * kChunks; i += S::kThreads) {
    const int line = i / kChunks, chunk = i % kChunks;
    const bool is_row = line < S::kRows;
    const int64_t at = is_row ? first_row + line : first_id + line - S::kRows;
    const bool valid = at < (is_row ? op.rows : op.vocab) && column + chunk * 8 < op.width;
    const T* from = static_cast<const T*>(is_row ? op.hidden : op.weight);
    if (valid) from += at * (is_row ? op.hidden_stride : op.weight_stride) + column + chunk * 8;
    cp_async_16(stage + S::place(line, chunk), from, valid);
  }
}

template <class T>
__device__ __forceinline__ void multiply_step(const T* stage, float (&logit)[HiddenTiles::kIds / 8][4]) {
  using S = HiddenTiles;
  const int lane = lane_id(), warp_row = warp_id() * 16;
#pragma unroll
  for (int k = 0; k < S::kColumns / 16; ++k) {
    uint32_t a[4];
    ldmatrix_x4(a, stage + S::place(warp_row + (lane & 15), 2 * k + (lane >> 4)));
#pragma unroll
    for (int n = 0; n < S::kIds / 16; ++n) {
      uint32_t b[4];  // ids 0 .. 8 of 16 columns, then ids 8 .. 16
      ldmatrix_x4(b, stage + S::place(S::kRows + 16 * n + (lane >> 4) * 8 + (lane & 7), 2 * k + (lane >> 3 & 1)));
      multiply_pair<T>(logit[2 * n], logit[2 * n + 1], a, b);
    }
  }
}

// budget: registers 255, shared 2048
template <class T, bool kSample>
__global__ void __launch_bounds__(HiddenTiles::kThreads)
    score_hidden_tiles(ScoreHidden op, VocabularyParts parts, ScoreState* states) {
  using S = HiddenTiles;
  SHARED_ARRAY(uint32_t, marks, [S::kRows][S::kIds / 32]);
  SMEM_CARVER(dynamic);
  T* stages = dynamic.take<T>(size_t(S::kStages) * S::kStageElements);
  const int part = int(blockIdx.x % unsigned(parts.count));
  const int64_t first_row = int64_t(blockIdx.x / unsigned(parts.count)) * S::kRows, begin = int64_t(part) * parts.ids;
  const int64_t end = min(begin + parts.ids, op.vocab);
  const int steps = max(int(ceil_div<int64_t>(op.width, S::kColumns)), 1);  // of a tile
  const int total = begin < end ? int(ceil_div<int64_t>(end - begin, S::kIds)) * steps : 0;
  const auto load = [&](int step) {
    if (step < total)
      load_step(op, first_row, begin + int64_t(step / steps) * S::kIds, int64_t(step % steps) * S::kColumns,
                stages + step % S::kStages * S::kStageElements);
    cp_async_commit();
  };
  const int group = lane_id() >> 2, turn = lane_id() & 3;
  const int rows[2] = {warp_id() * 16 + group, warp_id() * 16 + group + 8};
  ScoreState state[2] = {empty_state(), empty_state()};
  float logit[S::kIds / 8][4] = {};
  for (int step = 0; step < S::kStages - 1; ++step) load(step);
  for (int step = 0; step < total; ++step) {
    cp_async_wait<S::kStages - 2>();
    __syncthreads();  // this step has arrived for everybody, and nobody reads the stage of the last one any more
    load(step + S::kStages - 1);
    multiply_step(stages + step % S::kStages * S::kStageElements, logit);
    if (step % steps == steps - 1) {
      const int first_id = int(begin) + step / steps * S::kIds;
      const bool suppresses = op.choice.suppressed_count > 0;
      if (suppresses) mark_tile<S::kRows, S::kIds, S::kThreads>(op, first_row, first_id, marks);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t* mine = suppresses ? marks[op.choice.suppressed_rows > 1 ? rows[half] : 0] : nullptr;
        // Read again for every tile: registers are scarcer here than loads.
        const RowChoice choice(op.choice, min(first_row + rows[half], op.rows - 1));
#pragma unroll
        for (int n = 0; n < S::kIds / 8; ++n) {
          const int place = 8 * n + 2 * turn;
          float pair[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float value = logit[n][2 * half + i];
            pair[i] = first_id + place + i < end ? fmaxf(value, -INFINITY) : -INFINITY;  // NaN counts as -inf
            logit[n][2 * half + i] = 0.0f;
          }
          take_logits<kSample>(state[half], pair, first_id + place, mine, place, choice);
        }
      }
    }
  }
  cp_async_wait<0>();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    state[half] = merge_lanes<4>(state[half]);
    const int64_t row = first_row + rows[half];
    if (turn == 0 && row < op.rows) states[row * parts.count + part] = state[half];
  }
}

template <class T>
int launch_tiles(const ScoreHidden& op, const VocabularyParts& parts, const Launch& where) {
  using S = HiddenTiles;
  const unsigned blocks = unsigned(ceil_div<int64_t>(op.rows, S::kRows) * parts.count);
  const int error =
      launch(op.choice.temperature > 0 ? score_hidden_tiles<T, true> : score_hidden_tiles<T, false>, dim3(blocks),
             dim3(S::kThreads), S::kShared, where.stream, op, parts, static_cast<ScoreState*>(where.workspace));
  return error != cudaSuccess ? error : launch_merge(op, parts, where);
}

}  // namespace refusion::cuda
