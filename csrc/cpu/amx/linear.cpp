#include "cpu/kernels/linear_run.h"
#include "ops.h"
#include "tiled_rows.h"

namespace refusion::cpu::amx {

void linear(const Linear& op) {
  if (op.dtype == DType::bfloat16) run_linear<TiledRows>(op);
  else avx512::linear(op);
}

}  // namespace refusion::cpu::amx
