#include "linear_run.h"
#include "ops.h"
#include "rows_for.h"

namespace refusion::cpu::REFUSION_ISA {

void linear(const Linear& op) {
  with_type(op.dtype, [&](auto element) {
    with_rows_for<decltype(element)>(op.rows, [&](auto form) { run_linear<typename decltype(form)::Type>(op); });
  });
}

}  // namespace refusion::cpu::REFUSION_ISA
