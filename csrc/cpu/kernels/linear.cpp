#include "lane_ids.h"
#include "lane_rows.h"
#include "linear_run.h"
#include "ops.h"

namespace refusion::cpu::REFUSION_ISA {

void linear(const Linear& op) {
  with_type(op.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (!kHasLaneWords<T>) run_linear<PackedRows<T>>(op);
    else if (op.rows <= LaneIds<T>::kMost) run_linear<LaneIds<T>>(op);
    else run_linear<LaneRows<T>>(op);
  });
}

}  // namespace refusion::cpu::REFUSION_ISA
