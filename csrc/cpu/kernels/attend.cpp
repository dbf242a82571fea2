#include "attend_run.h"

namespace refusion::cpu::REFUSION_ISA {

void attend(const Attend& op) {
#if defined(__AVX512BF16__)
  run_attend<Pairs>(op);
#else
  run_attend<Singles>(op);
#endif
}

}  // namespace refusion::cpu::REFUSION_ISA
