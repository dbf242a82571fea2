#include "ops.h"

namespace refusion::cpu::REFUSION_ISA {

const Kernels& table() {
  static constexpr Kernels kernels{Isa::REFUSION_ISA, score_tokens,  score_hidden, linear, select_slots,
                                   accept_tokens,     rope_append,   attend,       compact_rows};
  return kernels;
}

}  // namespace refusion::cpu::REFUSION_ISA
