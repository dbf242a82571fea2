#include "ops.h"
#include "score_hidden_run.h"

namespace refusion::cpu::REFUSION_ISA {

void score_hidden(const ScoreHidden& op) {
  with_type(op.dtype, [&](auto element) { run_score_hidden<PackedRows<decltype(element)>>(op); });
}

}  // namespace refusion::cpu::REFUSION_ISA
