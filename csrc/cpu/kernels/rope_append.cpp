#include <cmath>
#include <cstring>

#include "cpu/simd.h"
#include "ops.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

// RMS norm (where there is a weight) and rotation of one head; in and out must not overlap.
template <class T>
void turn_head(const T* in, const T* weight, float epsilon, const float* cosine, const float* sine, int64_t head_dim, T* out) {
  const int64_t half = head_dim / 2;
  float scale = 1;
  if (weight) {
    float squares = 0;
    for (int64_t i = 0; i < head_dim; ++i) squares += to_float(in[i]) * to_float(in[i]);
    scale = 1 / std::sqrt(squares / float(head_dim) + epsilon);
  }
  for (int64_t i = 0; i < half; ++i) {
    float low = to_float(in[i]), high = to_float(in[i + half]);
    if (weight) {
      low *= scale * to_float(weight[i]);
      high *= scale * to_float(weight[i + half]);
    }
    from_float(low * cosine[i] - high * sine[i], out + i);
    from_float(high * cosine[i] + low * sine[i], out + i + half);
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

}  // namespace

void rope_append(const RopeAppend& op) {
  for (int64_t sequence = 0; sequence < op.sequences; ++sequence)
    for (int64_t token = op.sequence_offsets[sequence]; token < op.sequence_offsets[sequence + 1]; ++token)
      with_type(op.dtype, [&](auto element) { append_token<decltype(element)>(op, token, sequence); });
}

}  // namespace refusion::cpu::REFUSION_ISA
