// score_hidden without tensor cores: float32, and 16-bit arrays whose rows are not whole multiples of 16 bytes. 64 rows
// by 64 ids; a thread has 4 by 4 of them.
#pragma once
#include "cuda/score_hidden_part.cuh"

namespace refusion::cuda {

struct HiddenSimple {
  static constexpr int kThreads = 256, kSide = 64, kColumns = 32;
};

// budget: registers 168, shared 32768
template <class T, bool kSample>
__global__ void __launch_bounds__(HiddenSimple::kThreads)
    score_hidden_simple(ScoreHidden op, VocabularyParts parts, ScoreState* states) {
  using S = HiddenSimple;
  SHARED_ARRAY(float, rows, [S::kColumns][S::kSide + 4]);
  SHARED_ARRAY(float, ids, [S::kColumns][S::kSide + 4]);
  SHARED_ARRAY(uint32_t, marks, [S::kSide][S::kSide / 32]);
  const int part = int(blockIdx.x % unsigned(parts.count)), x = int(threadIdx.x) % 16, y = int(threadIdx.x) / 16;
  const int64_t first_row = int64_t(blockIdx.x / unsigned(parts.count)) * S::kSide, begin = int64_t(part) * parts.ids;
  const int64_t end = min(begin + parts.ids, op.vocab);
  const T *hidden = static_cast<const T*>(op.hidden), *weight = static_cast<const T*>(op.weight);
  ScoreState state[4] = {empty_state(), empty_state(), empty_state(), empty_state()};
  for (int64_t first_id = begin; first_id < end; first_id += S::kSide) {
    float logit[4][4] = {};
    for (int64_t column = 0; column < op.width; column += S::kColumns) {
      __syncthreads();  // the last columns are done with
      for (int i = int(threadIdx.x); i < S::kSide * S::kColumns; i += S::kThreads) {
        const int line = i / S::kColumns, c = i % S::kColumns;
        const bool inside = column + c < op.width;
        rows[c][line] = inside && first_row + line < op.rows
                            ? to_float(hidden[(first_row + line) * op.hidden_stride + column + c])
                            : 0.0f;
        ids[c][line] = inside && first_id + line < end
                           ? to_float(weight[(first_id + line) * op.weight_stride + column + c])
                           : 0.0f;
      }
      __syncthreads();
#pragma unroll 4
      for (int c = 0; c < S::kColumns; ++c) {
        const float4 a = *reinterpret_cast<const float4*>(&rows[c][4 * y]);
        const float4 b = *reinterpret_cast<const float4*>(&ids[c][4 * x]);
        const float left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) logit[i][j] += left[i] * right[j];
      }
    }
    const bool suppresses = op.choice.suppressed_count > 0;
    if (suppresses) mark_tile<S::kSide, S::kSide, S::kThreads>(op, first_row, int(first_id), marks);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 4 * y + i;
      const uint32_t* mine = suppresses ? marks[op.choice.suppressed_rows > 1 ? row : 0] : nullptr;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        logit[i][j] = first_id + 4 * x + j < end ? fmaxf(logit[i][j], -INFINITY) : -INFINITY;  // NaN counts as -inf
      const RowChoice choice(op.choice, min(first_row + row, op.rows - 1));
      take_logits<kSample>(state[i], logit[i], int(first_id) + 4 * x, mine, 4 * x, choice);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    state[i] = merge_lanes<16>(state[i]);
    const int64_t row = first_row + 4 * y + i;
    if (x == 0 && row < op.rows) states[row * parts.count + part] = state[i];
  }
}

template <class T>
int launch_simple(const ScoreHidden& op, const VocabularyParts& parts, const Launch& where) {
  using S = HiddenSimple;
  const unsigned blocks = unsigned(ceil_div<int64_t>(op.rows, S::kSide) * parts.count);
  const int error =
      launch(op.choice.temperature > 0 ? score_hidden_simple<T, true> : score_hidden_simple<T, false>, dim3(blocks),
             dim3(S::kThreads), 0, where.stream, op, parts, static_cast<ScoreState*>(where.workspace));
  return error != cudaSuccess ? error : launch_merge(op, parts, where);
}

}  // namespace refusion::cuda
