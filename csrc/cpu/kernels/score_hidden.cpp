#include <cstdlib>

#include "cpu/simd.h"
#include "ops.h"

namespace refusion::cpu::REFUSION_ISA {

void score_hidden(const ScoreHidden& op) {
  float* logits = static_cast<float*>(std::malloc(size_t(op.rows * op.vocab + 1) * sizeof(float)));
  with_type(op.dtype, [&](auto element) {
    using T = decltype(element);
#pragma omp parallel for if (op.rows * op.vocab * op.width > 65536)
    for (int64_t id = 0; id < op.vocab; ++id)
      for (int64_t row = 0; row < op.rows; ++row) {
        const T* h = static_cast<const T*>(op.hidden) + row * op.hidden_stride;
        const T* w = static_cast<const T*>(op.weight) + id * op.weight_stride;
        float sum = 0;
        for (int64_t i = 0; i < op.width; ++i) sum += to_float(h[i]) * to_float(w[i]);
        logits[row * op.vocab + id] = sum;
      }
  });
  score_tokens({logits, DType::float32, op.rows, op.vocab, op.vocab, op.choice, op.scores});
  std::free(logits);
}

}  // namespace refusion::cpu::REFUSION_ISA
