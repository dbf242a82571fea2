#include <omp.h>

#include <cstring>

#include "lanes.h"
#include "ops.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

constexpr int64_t kParallelElements = 1 << 16;  // below, a parallel region costs more than it saves

// RMS norm (where there is a weight) and rotation of one head: dimension i turns with i + head_dim / 2.
template <class T>
void turn_head(const T* in, const T* weight, float epsilon, const float* cosine, const float* sine, int64_t head_dim,
               T* out) {
  const int64_t half = head_dim / 2;
  const Floats scale = broadcast(weight ? inverse_root_mean_square(in, head_dim, epsilon) : 1.0f);
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t lanes = lanes_at(i, half);
    Floats low = load_lanes(in + i, lanes), high = load_lanes(in + half + i, lanes);
    if (weight) {
      low = low * scale * load_lanes(weight + i, lanes);
      high = high * scale * load_lanes(weight + half + i, lanes);
    }
    const Floats c = load_lanes(cosine + i, lanes), s = load_lanes(sine + i, lanes);
    store_lanes(out + i, low * c - high * s, lanes);
    store_lanes(out + half + i, fma(high, c, low * s), lanes);
  }
}

template <class T>
void append_token(const RopeAppend& op, int64_t token, int64_t sequence) {
  const T* in = static_cast<const T*>(op.qkv) + token * op.qkv_stride;
  const float* cosine = op.cosine + op.position_ids[token] * (op.head_dim / 2);
  const float* sine = op.sine + op.position_ids[token] * (op.head_dim / 2);
  const int64_t row = op.rows[token];
  T* q = static_cast<T*>(op.q) + token * op.q_heads * op.head_dim;
  for (int64_t head = 0; head < op.q_heads; ++head, in += op.head_dim, q += op.head_dim)
    turn_head(in, static_cast<const T*>(op.q_norm), op.norm_epsilon, cosine, sine, op.head_dim, q);
  T* k = static_cast<T*>(op.k_cache) + sequence * op.k_strides.sequence + row * op.k_strides.row;
  for (int64_t head = 0; head < op.kv_heads; ++head, in += op.head_dim, k += op.k_strides.head)
    turn_head(in, static_cast<const T*>(op.k_norm), op.norm_epsilon, cosine, sine, op.head_dim, k);
  T* v = static_cast<T*>(op.v_cache) + sequence * op.v_strides.sequence + row * op.v_strides.row;
  for (int64_t head = 0; head < op.kv_heads; ++head, in += op.head_dim, v += op.v_strides.head)
    std::memcpy(static_cast<void*>(v), in, size_t(op.head_dim) * sizeof(T));
}

template <class T>
void append_tokens(const RopeAppend& op, int64_t begin, int64_t end) {
  int64_t sequence = 0;
  for (int64_t token = begin; token < end; ++token) {
    while (token >= op.sequence_offsets[sequence + 1]) ++sequence;
    append_token<T>(op, token, sequence);
  }
}

}  // namespace

void rope_append(const RopeAppend& op) {
  const int64_t elements = op.tokens * (op.q_heads + 2 * op.kv_heads) * op.head_dim;
  with_type(op.dtype, [&](auto element) {
    using T = decltype(element);
    if (elements < kParallelElements) return append_tokens<T>(op, 0, op.tokens);
#pragma omp parallel
    {
      const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
      append_tokens<T>(op, op.tokens * thread / threads, op.tokens * (thread + 1) / threads);
    }
  });
}

}  // namespace refusion::cpu::REFUSION_ISA
