#include "cpu/kernels/score_hidden_run.h"
#include "ops.h"
#include "tiled_rows.h"

namespace refusion::cpu::amx {

void score_hidden(const ScoreHidden& op) {
  if (op.dtype == DType::bfloat16) run_score_hidden<TiledRows>(op);
  else avx512::score_hidden(op);
}

}  // namespace refusion::cpu::amx
