// One pass over the logits: 16-byte loads, a state a thread. A row is split over blocks where rows are few; a second
// launch merges the parts in order.
#include <algorithm>

#include "cuda/launchers.h"
#include "cuda/score_state.cuh"

namespace refusion::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kLeastPart = 4096;    // ids: below, a part costs more in merging than it saves
constexpr int kMostPart = 1 << 18;  // ids: 32 KiB of marks for suppressed ones

struct Split {
  int parts, ids;  // of a row; ids of a part, a multiple of 32
};

Split split_rows(const ScoreTokens& op, int multiprocessors) {
  const int64_t wanted = ceil_div<int64_t>(4 * int64_t(multiprocessors), std::max<int64_t>(op.rows, 1));
  const int64_t most = std::max<int64_t>(op.vocab / kLeastPart, 1), least = ceil_div<int64_t>(op.vocab, kMostPart);
  const int64_t parts = std::max(std::min(wanted, most), std::max<int64_t>(least, 1));
  const int64_t ids = ceil_div<int64_t>(ceil_div(std::max<int64_t>(op.vocab, 1), parts), 32) * 32;
  return {int(ceil_div(std::max<int64_t>(op.vocab, 1), ids)), int(ids)};
}

// Marks of the suppressed ids of [begin, begin + ids), one bit an id.
struct Marks {
  const uint32_t* words;  // null: none is suppressed
  int begin;

  __device__ __forceinline__ bool allow(int id) const {
    return words == nullptr || !(words[(id - begin) >> 5] >> ((id - begin) & 31) & 1);
  }
};

__device__ void mark_suppressed(const TokenChoice& choice, int64_t row, int begin, int ids, uint32_t* words) {
  for (int i = int(threadIdx.x); i < ids / 32; i += kThreads) words[i] = 0;
  __syncthreads();
  const int32_t* mine = choice.suppressed + (choice.suppressed_rows > 1 ? row * choice.suppressed_count : 0);
  for (int64_t i = threadIdx.x; i < choice.suppressed_count; i += kThreads) {
    const int at = mine[i] - begin;
    if (mine[i] >= begin && at < ids) atomicOr(words + (at >> 5), 1u << (at & 31));
  }
  __syncthreads();
}

// The logits of ids first .. first + N into the state.
template <int N>
__device__ __forceinline__ void take(ScoreState& state, const float (&logit)[N], int first, const Marks& marks,
                                     int64_t given) {
  float top = logit[0];
#pragma unroll
  for (int i = 1; i < N; ++i) top = fmaxf(top, logit[i]);
  raise_reference(state, top);
#pragma unroll
  for (int i = 0; i < N; ++i) add_logit(state, logit[i]);
  if (top > state.second) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (marks.allow(first + i)) rank_logit(state, logit[i], first + i);
  }
  if (given >= first && given < first + N) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (given == first + i) state.given = logit[i];
  }
}

template <class T>
__device__ __forceinline__ float read(const T* x) {
  return fmaxf(to_float(*x), -INFINITY);  // NaN counts as -inf
}

// Greedy: a few elements until the first whole 16 bytes, vectors, the rest.
template <class T>
__device__ __forceinline__ void score_vectors(const T* x, int begin, int end, const Marks& marks, int64_t given,
                                              ScoreState& state) {
  constexpr int N = kVector<T>;
  const int misplaced = int(reinterpret_cast<uintptr_t>(x + begin) % 16 / sizeof(T));
  const int lead = min((N - misplaced) % N, end - begin), first = begin + lead, vectors = (end - first) / N;
  if (int(threadIdx.x) < lead) {
    const float logit[1] = {read(x + begin + threadIdx.x)};
    take(state, logit, begin + int(threadIdx.x), marks, given);
  }
  const uint4* whole = reinterpret_cast<const uint4*>(x + first);
#pragma unroll 2
  for (int v = int(threadIdx.x); v < vectors; v += kThreads) {
    const Vector<T> loaded(__ldg(whole + v));
    float logit[N];
#pragma unroll
    for (int i = 0; i < N; ++i) logit[i] = read(&loaded.element[i]);
    take(state, logit, first + v * N, marks, given);
  }
  const int last = first + vectors * N + int(threadIdx.x);
  if (last < end) {
    const float logit[1] = {read(x + last)};
    take(state, logit, last, marks, given);
  }
}

// Sampling: four ids at a time, which share one block of random words.
template <class T>
__device__ __forceinline__ void score_quads(const T* x, int begin, int end, const Marks& marks, const RowChoice& choice,
                                            ScoreState& state) {
  for (int id = begin + 4 * int(threadIdx.x); id < end; id += 4 * kThreads) {
    float logit[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) logit[i] = id + i < end ? read(x + id + i) : -INFINITY;
    take(state, logit, id, Marks{nullptr, 0}, choice.given);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (id + i < end && !marks.allow(id + i)) logit[i] = -INFINITY;
    draw_logits(state, logit, uint32_t(id) / 4, choice);
  }
}

// The best of ids that may be chosen, which sampling does not rank on its way.
template <class T>
__device__ __forceinline__ void rank_quads(const T* x, int begin, int end, const Marks& marks, ScoreState& state) {
  state.best = state.second = -INFINITY;
  state.best_id = -1;
  for (int id = begin + int(threadIdx.x); id < end; id += kThreads)
    if (marks.allow(id)) rank_logit(state, read(x + id), id);
}

// budget: registers 64, shared 32768
template <class T>
__global__ void __launch_bounds__(kThreads) score_parts(ScoreTokens op, Split split, ScoreState* parts) {
  SMEM_CARVER(dynamic);
  SHARED_ARRAY(ScoreState, warp_state, [kWarps]);
  const int64_t row = blockIdx.x / unsigned(split.parts);
  const int part = int(blockIdx.x % unsigned(split.parts));
  const int begin = part * split.ids, end = int(min(int64_t(begin) + split.ids, op.vocab));
  const T* x = static_cast<const T*>(op.logits) + row * op.row_stride;
  const RowChoice choice(op.choice, row);
  Marks marks{nullptr, begin};
  if (op.choice.suppressed_count > 0) {
    uint32_t* words = dynamic.take<uint32_t>(size_t(split.ids) / 32);
    mark_suppressed(op.choice, row, begin, split.ids, words);
    marks.words = words;
  }
  ScoreState state = empty_state();
  if (choice.sample_key == nullptr) {
    score_vectors(x, begin, end, marks, choice.given, state);
  } else {
    score_quads(x, begin, end, marks, choice, state);
    if (marks.words != nullptr) rank_quads(x, begin, end, marks, state);
  }
  state = merge_lanes(state);
  if (lane_id() == 0) warp_state[warp_id()] = state;
  __syncthreads();
  if (warp_id() == 0) {
    state = merge_lanes<kWarps>(warp_state[lane_id() % kWarps]);
    if (lane_id() == 0) {
      if (split.parts == 1)
        deliver(state, choice, op.scores, row);
      else
        parts[blockIdx.x] = state;
    }
  }
}

template <class T>
int launch_as(const ScoreTokens& op, const Launch& where) {
  const Split split = split_rows(op, where.multiprocessors);
  ScoreState* parts = static_cast<ScoreState*>(where.workspace);
  const size_t shared = op.choice.suppressed_count > 0 ? size_t(split.ids) / 8 : 0;
  const int error = launch(score_parts<T>, dim3(unsigned(op.rows * split.parts)), dim3(kThreads), shared, where.stream,
                           op, split, parts);
  if (error != cudaSuccess || split.parts == 1) return error;
  return launch(merge_parts, dim3(unsigned(ceil_div<int64_t>(op.rows, 4))), dim3(128), 0, where.stream, parts, op.rows,
                split.parts, op.choice, op.scores);
}

}  // namespace

size_t workspace_bytes(const ScoreTokens& op, int multiprocessors) {
  const Split split = split_rows(op, multiprocessors);
  return split.parts == 1 ? 0 : size_t(op.rows) * size_t(split.parts) * sizeof(ScoreState);
}

int launch(const ScoreTokens& op, const Launch& where) {
  if (op.rows == 0) return cudaSuccess;
  switch (op.dtype) {
    case DType::float32: return launch_as<float>(op, where);
    case DType::bfloat16: return launch_as<__nv_bfloat16>(op, where);
    default: return launch_as<__half>(op, where);
  }
}

}  // namespace refusion::cuda
