#include <cmath>

#include "cpu/simd.h"
#include "ops.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

// One query and head with an online softmax over the committed rows and the window.
template <class T>
void attend_head(const Attend& op, int64_t sequence, int64_t token, int64_t head, float* state) {
  const int64_t kv_head = head / (op.q_heads / op.kv_heads);
  const T* q = static_cast<const T*>(op.q) + token * op.q_token_stride + head * op.q_head_stride;
  const T* k = static_cast<const T*>(op.k_cache) + sequence * op.k_strides.sequence + kv_head * op.k_strides.head;
  const T* v = static_cast<const T*>(op.v_cache) + sequence * op.v_strides.sequence + kv_head * op.v_strides.head;
  float most = -INFINITY, sum = 0;
  for (int64_t i = 0; i < op.head_dim; ++i) state[i] = 0;
  auto see = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float score = 0;
      for (int64_t i = 0; i < op.head_dim; ++i) score += to_float(q[i]) * to_float(k[row * op.k_strides.row + i]);
      score *= op.scale;
      if (score > most) {
        const float shrink = std::exp(most - score);
        for (int64_t i = 0; i < op.head_dim; ++i) state[i] *= shrink;
        sum *= shrink;
        most = score;
      }
      const float weight = std::exp(score - most);
      for (int64_t i = 0; i < op.head_dim; ++i) state[i] += weight * to_float(v[row * op.v_strides.row + i]);
      sum += weight;
    }
  };
  const int64_t committed = op.committed[sequence];
  see(0, committed);
  see(committed + op.window_begin[token], committed + op.window_end[token]);
  T* out = static_cast<T*>(op.out) + (token * op.q_heads + head) * op.head_dim;
  for (int64_t i = 0; i < op.head_dim; ++i) from_float(sum > 0 ? state[i] / sum : 0.0f, out + i);
}

}  // namespace

void attend(const Attend& op) {
  for (int64_t sequence = 0; sequence < op.sequences; ++sequence) {
    const int64_t begin = op.sequence_offsets[sequence], end = op.sequence_offsets[sequence + 1];
#pragma omp parallel for if ((end - begin) * op.q_heads * op.head_dim > 4096)
    for (int64_t i = begin * op.q_heads; i < end * op.q_heads; ++i) {
      float state[256];
      with_type(op.dtype, [&](auto element) {
        attend_head<decltype(element)>(op, sequence, i / op.q_heads, i % op.q_heads, state);
      });
    }
  }
}

}  // namespace refusion::cpu::REFUSION_ISA
