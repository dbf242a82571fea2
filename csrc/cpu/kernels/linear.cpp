#include "linear_run.h"
#include "ops.h"

namespace refusion::cpu::REFUSION_ISA {

void linear(const Linear& op) {
  with_type(op.dtype, [&](auto element) { run_linear<PackedRows<decltype(element)>>(op); });
}

}  // namespace refusion::cpu::REFUSION_ISA
