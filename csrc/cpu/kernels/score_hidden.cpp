#include "lane_ids.h"
#include "lane_rows.h"
#include "ops.h"
#include "score_hidden_run.h"

namespace refusion::cpu::REFUSION_ISA {

void score_hidden(const ScoreHidden& op) {
  with_type(op.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (!kHasLaneWords<T>) run_score_hidden<PackedRows<T>>(op);
    else if (op.rows <= LaneIds<T>::kMost) run_score_hidden<LaneIds<T>>(op);
    else run_score_hidden<LaneRows<T>>(op);
  });
}

}  // namespace refusion::cpu::REFUSION_ISA
