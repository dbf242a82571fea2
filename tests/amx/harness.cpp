// The AMX kernels with emulated tiles behind C functions.
#include "cpu/amx/ops.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void attend(const refusion::Attend* op) { refusion::cpu::amx::attend(*op); }
EXPORT void linear(const refusion::Linear* op) { refusion::cpu::amx::linear(*op); }
EXPORT void score_hidden(const refusion::ScoreHidden* op) { refusion::cpu::amx::score_hidden(*op); }

EXPORT long products() { return tiles::products; }

EXPORT void forbid(const char* begin, const char* end) {
  tiles::forbidden = begin;
  tiles::forbidden_end = end;
  tiles::stray_loads = 0;
}

EXPORT long stray_loads() { return tiles::stray_loads; }
