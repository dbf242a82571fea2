#include "cpu/kernels/attend_run.h"
#include "ops.h"
#include "attend_products.h"

namespace refusion::cpu::amx {

void attend(const Attend& op) {
  if (op.dtype == DType::bfloat16 && op.head_dim % 32 == 0) attend_typed<BFloat16, Tiles>(op);
  else avx512::attend(op);
}

}  // namespace refusion::cpu::amx
