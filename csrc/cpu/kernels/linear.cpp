#include "lane_rows.h"
#include "linear_run.h"
#include "ops.h"

namespace refusion::cpu::REFUSION_ISA {

void linear(const Linear& op) {
  with_type(op.dtype, [&](auto element) {
    using T = decltype(element);
#if defined(__AVX512BF16__)
    if constexpr (sizeof(typename Product<T>::Packed) == sizeof(T))  // not float16, whose matrix rows are converted
      if (op.rows > kPanel) return run_linear<LaneRows<T>>(op);
#endif
    run_linear<PackedRows<T>>(op);
  });
}

}  // namespace refusion::cpu::REFUSION_ISA
