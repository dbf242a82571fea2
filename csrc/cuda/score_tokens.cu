// One pass over the logits. A row is cut into parts of fixed size, a block each, and a second launch merges them in
// order; within a part, ids belong to threads by their number alone. So a result depends on nothing but its row:
// neither on the other rows, nor on the device, nor on where the row lies in memory.
#include "cuda/launchers.h"
#include "cuda/score_state.cuh"

namespace refusion::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kPart = 16384;  // ids: 64 a thread, so that the block's reduction costs a tenth

// Which ids of a part may not be chosen, one bit an id.
struct Marks {
  const uint32_t* words;  // null: all may
  int begin;

  __device__ __forceinline__ bool allow(int id) const {
    return words == nullptr || !(words[(id - begin) >> 5] >> ((id - begin) & 31) & 1);
  }
};

__device__ void mark_suppressed(const TokenChoice& choice, int64_t row, int begin, uint32_t* words) {
  for (int i = int(threadIdx.x); i < kPart / 32; i += kThreads) words[i] = 0;
  __syncthreads();
  const int32_t* mine = choice.suppressed + (choice.suppressed_rows > 1 ? row * choice.suppressed_count : 0);
  for (int64_t i = threadIdx.x; i < choice.suppressed_count; i += kThreads) {
    const int id = mine[i];
    if (id >= begin && id - begin < kPart) atomicOr(words + ((id - begin) >> 5), 1u << ((id - begin) & 31));
  }
  __syncthreads();
}

// N elements that start `misplaced` elements behind an address of 16 bytes, from the two vectors in which they lie.
template <class T>
__device__ __forceinline__ Vector<T> join(const uint4& a, const uint4& b, int misplaced) {
  const int bytes = misplaced * int(sizeof(T));
  uint32_t word[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  if (bytes & 8) {
#pragma unroll
    for (int i = 0; i < 6; ++i) word[i] = word[i + 2];
  }
  if (bytes & 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) word[i] = word[i + 1];
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) word[i] = __funnelshift_r(word[i], word[i + 1], 8 * (bytes & 3));
  return Vector<T>(make_uint4(word[0], word[1], word[2], word[3]));
}

// The logits of ids id .. id + N of a row; -inf from `end` on. Only whole vectors inside of [0, end) are read as such.
template <class T>
__device__ __forceinline__ void load_logits(const T* x, int id, int end, int misplaced, float (&logit)[kVector<T>]) {
  constexpr int N = kVector<T>;
  const int first = id - misplaced, last = misplaced == 0 ? first + N : first + 2 * N;
  if (first >= 0 && last <= end) {
    const uint4* from = reinterpret_cast<const uint4*>(x + first);
    const uint4 a = __ldg(from);
    const Vector<T> loaded = misplaced == 0 ? Vector<T>(a) : join<T>(a, __ldg(from + 1), misplaced);
#pragma unroll
    for (int i = 0; i < N; ++i) logit[i] = to_float(loaded.element[i]);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) logit[i] = id + i < end ? to_float(x[id + i]) : -INFINITY;
  }
}

// Ids id .. id + N into the state.
template <int N>
__device__ __forceinline__ void take_logits(ScoreState& state, float (&logit)[N], int id, const Marks& marks,
                                            const RowChoice& choice) {
  float top = -INFINITY;
#pragma unroll
  for (int i = 0; i < N; ++i) top = fmaxf(top, logit[i]);
  raise_reference(state, top);
#pragma unroll
  for (int i = 0; i < N; ++i) add_logit(state, logit[i]);
  if (choice.given >= id && choice.given < id + N) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (choice.given == id + i) state.given = fmaxf(logit[i], -INFINITY);
  }
  const bool draws = choice.sample_key != nullptr;
  if (!draws && !(top > state.second)) return;
#pragma unroll
  for (int i = 0; i < N; ++i) logit[i] = marks.allow(id + i) ? fmaxf(logit[i], -INFINITY) : -INFINITY;
#pragma unroll
  for (int i = 0; i < N; ++i) rank_logit(state, logit[i], id + i);
  if (draws) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float four[4] = {logit[i], logit[i + 1], logit[i + 2], logit[i + 3]};
      draw_logits(state, four, uint32_t(id + i) / 4, choice);
    }
  }
}

// budget: registers 64, shared 4096
template <class T>
__global__ void __launch_bounds__(kThreads) score_parts(ScoreTokens op, int count, ScoreState* parts) {
  SHARED_ARRAY(uint32_t, marked, [kPart / 32]);
  SHARED_ARRAY(ScoreState, warp_state, [kWarps]);
  constexpr int N = kVector<T>;
  const int64_t row = blockIdx.x / unsigned(count);
  const int begin = int(blockIdx.x % unsigned(count)) * kPart, end = int(op.vocab);
  const T* x = static_cast<const T*>(op.logits) + row * op.row_stride;
  const int misplaced = int(reinterpret_cast<uintptr_t>(x) % 16 / sizeof(T));
  const RowChoice choice(op.choice, row);
  Marks marks{nullptr, begin};
  if (op.choice.suppressed_count > 0) {
    mark_suppressed(op.choice, row, begin, marked);
    marks.words = marked;
  }
  ScoreState state = empty_state();
#pragma unroll 2
  for (int id = begin + N * int(threadIdx.x); id < min(begin + kPart, end); id += N * kThreads) {
    float logit[N];
    load_logits(x, id, end, misplaced, logit);
    take_logits(state, logit, id, marks, choice);
  }
  state = merge_lanes(state);
  if (lane_id() == 0) warp_state[warp_id()] = state;
  __syncthreads();
  if (warp_id() == 0) {
    state = merge_lanes<kWarps>(warp_state[lane_id() % kWarps]);
    if (lane_id() == 0) {
      if (count == 1)
        deliver(state, choice, op.scores, row);
      else
        parts[blockIdx.x] = state;
    }
  }
}

int parts_of_row(const ScoreTokens& op) { return int(ceil_div<int64_t>(op.vocab < 1 ? 1 : op.vocab, kPart)); }

template <class T>
int launch_as(const ScoreTokens& op, const Launch& where) {
  const int count = parts_of_row(op);
  ScoreState* parts = static_cast<ScoreState*>(where.workspace);
  const int error =
      launch(score_parts<T>, dim3(unsigned(op.rows * count)), dim3(kThreads), 0, where.stream, op, count, parts);
  if (error != cudaSuccess || count == 1) return error;
  return launch_merge(parts, op.rows, count, op.choice, op.scores, where.stream);
}

}  // namespace

size_t workspace_bytes(const ScoreTokens& op, int) {
  const int count = parts_of_row(op);
  return count == 1 ? 0 : size_t(op.rows) * size_t(count) * sizeof(ScoreState);
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
