// What the kernels of score_hidden share: the share of the vocabulary of a block, and marks of suppressed ids.
#pragma once
#include "cuda/launchers.h"
#include "cuda/score_state.cuh"

namespace refusion::cuda {

// Parts of the vocabulary: a block scores some rows over one of them, tile by tile. They have one size, whatever the
// rows and the device, so that a result depends on nothing but its row; some hundred of them keep every device busy.
struct VocabularyParts {
  int count;
  int ids;  // of a part, a multiple of a tile
};

inline VocabularyParts split_vocabulary(const ScoreHidden& op) {
  constexpr int kIds = 512;
  return {op.vocab > 0 ? int(ceil_div<int64_t>(op.vocab, kIds)) : 1, kIds};
}

inline size_t states_bytes(const ScoreHidden& op, const VocabularyParts& parts) {
  return size_t(op.rows) * size_t(parts.count) * sizeof(ScoreState);
}

inline int launch_merge(const ScoreHidden& op, const VocabularyParts& parts, const Launch& where) {
  const ScoreState* states = static_cast<const ScoreState*>(where.workspace);
  return launch_merge(states, op.rows, parts.count, op.choice, op.scores, where.stream);
}

// Marks which ids of a tile of kIds are suppressed for which of kRows rows. All threads of the block call this.
template <int kRows, int kIds, int kThreads>
__device__ __forceinline__ void mark_tile(const ScoreHidden& op, int64_t first_row, int first_id,
                                          uint32_t (*marks)[kIds / 32]) {
  const TokenChoice& choice = op.choice;
  const int rows = choice.suppressed_rows > 1 ? kRows : 1;
  __syncthreads();  // the marks of the last tile are done with
  for (int i = int(threadIdx.x); i < rows * (kIds / 32); i += kThreads) marks[i / (kIds / 32)][i % (kIds / 32)] = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < rows * choice.suppressed_count; i += kThreads) {
    const int row = int(i / choice.suppressed_count);
    if (first_row + row >= op.rows) continue;
    const int id = choice.suppressed[(rows > 1 ? first_row * choice.suppressed_count : 0) + i];
    const unsigned at = unsigned(id) - unsigned(first_id);  // any id may stand there
    if (at < kIds) atomicOr(&marks[row][at / 32], 1u << (at % 32));
  }
  __syncthreads();
}

// Some neighbouring logits of a row into its state. Ids behind the vocabulary have -inf.
template <bool kSample, int N>
__device__ __forceinline__ void take_logits(ScoreState& state, const float (&logit)[N], int first_id,
                                            const uint32_t* marks, int place, const RowChoice& choice) {
  float top = logit[0];
#pragma unroll
  for (int i = 1; i < N; ++i) top = fmaxf(top, logit[i]);
  raise_reference(state, top);
  float allowed[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};  // by place in the block of random words
#pragma unroll
  for (int i = 0; i < N; ++i) {
    add_logit(state, logit[i]);
    if (choice.given == first_id + i) state.given = logit[i];
    if (marks == nullptr || !(marks[(place + i) / 32] >> ((place + i) % 32) & 1)) {
      rank_logit(state, logit[i], first_id + i);
      allowed[(N == 4 ? 0 : first_id & 3) + i] = logit[i];
    }
  }
  if constexpr (kSample) draw_logits(state, allowed, uint32_t(first_id) / 4, choice);
}

}  // namespace refusion::cuda
