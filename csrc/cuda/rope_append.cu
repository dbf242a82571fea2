// One warp a head of a token: norm, rotation and the write to q or to the cache row, in one pass.
#include "cuda/launchers.h"
#include "cuda/ranges.cuh"

namespace refusion::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kPairs = 4;  // of dimensions i, i + head_dim / 2, that a lane holds at most: head_dim 256

__device__ __forceinline__ float sum_lanes(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(kAllLanes, x, lanes);
  return x;
}

// Where the head of a token goes, and what is done to it on the way.
template <class T>
struct Head {
  T* to;          // null: a row or sequence that does not exist
  const T* norm;  // null: no norm
  bool turns;
};

template <class T>
__device__ __forceinline__ Head<T> find_head(const RopeAppend& op, int64_t token, int head) {
  if (head < op.q_heads)
    return {static_cast<T*>(op.q) + (token * op.q_heads + head) * op.head_dim, static_cast<const T*>(op.q_norm), true};
  const int sequence = range_of(op.sequence_offsets, int(op.sequences), int(token));
  const int row = op.rows[token];
  const bool is_key = head < op.q_heads + op.kv_heads;
  const int64_t kv_head = head - op.q_heads - (is_key ? 0 : op.kv_heads);
  const CacheStrides& strides = is_key ? op.k_strides : op.v_strides;
  T* cache = static_cast<T*>(is_key ? op.k_cache : op.v_cache);
  const bool exists = row >= 0 && row < op.capacity;
  if (exists) cache += sequence * strides.sequence + kv_head * strides.head + row * strides.row;
  return {exists ? cache : nullptr, is_key ? static_cast<const T*>(op.k_norm) : nullptr, is_key};
}

// budget: registers 64, shared 0
template <class T>
__global__ void __launch_bounds__(kThreads) append_heads(RopeAppend op) {
  const int64_t heads = op.q_heads + 2 * op.kv_heads, item = int64_t(blockIdx.x) * kWarps + warp_id();
  const bool present = item < op.tokens * heads;
  const int64_t token = present ? item / heads : 0;
  const int half = int(op.head_dim) / 2;
  const Head<T> head = find_head<T>(op, token, int(present ? item % heads : 0));
  const T* from = static_cast<const T*>(op.qkv) + token * op.qkv_stride + (present ? item % heads : 0) * op.head_dim;
  float low[kPairs], high[kPairs], squares = 0;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    const int i = lane_id() + 32 * p;
    low[p] = i < half ? to_float(from[i]) : 0.0f;
    high[p] = i < half ? to_float(from[half + i]) : 0.0f;
    squares += low[p] * low[p] + high[p] * high[p];
  }
  squares = sum_lanes(squares);
  const float scale = 1.0f / sqrtf(squares / float(op.head_dim) + op.norm_epsilon);
  const int position = min(max(op.position_ids[token], 0), int(op.positions) - 1);
  const float *cosine = op.cosine + int64_t(position) * half, *sine = op.sine + int64_t(position) * half;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    const int i = lane_id() + 32 * p;
    if (present && head.to != nullptr && i < half) {
      float a = low[p], b = high[p];
      if (head.norm != nullptr) {
        a = a * scale * to_float(head.norm[i]);
        b = b * scale * to_float(head.norm[half + i]);
      }
      const float c = head.turns ? cosine[i] : 1.0f, s = head.turns ? sine[i] : 0.0f;
      head.to[i] = from_float<T>(a * c - b * s);
      head.to[half + i] = from_float<T>(b * c + a * s);
    }
  }
}

template <class T>
int launch_as(const RopeAppend& op, const Launch& where) {
  const int64_t items = op.tokens * (op.q_heads + 2 * op.kv_heads);
  return launch(append_heads<T>, dim3(unsigned(ceil_div<int64_t>(items, kWarps))), dim3(kThreads), 0, where.stream, op);
}

}  // namespace

size_t workspace_bytes(const RopeAppend&, int) { return 0; }

int launch(const RopeAppend& op, const Launch& where) {
  if (op.tokens == 0 || op.sequences == 0 || op.positions == 0) return cudaSuccess;
  switch (op.dtype) {
    case DType::float32: return launch_as<float>(op, where);
    case DType::bfloat16: return launch_as<__nv_bfloat16>(op, where);
    default: return launch_as<__half>(op, where);
  }
}

}  // namespace refusion::cuda
