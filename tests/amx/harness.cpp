// The AMX kernel with emulated tiles behind C functions.
#include "refusion/attend.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace refusion::cpu::amx {
void attend(const Attend& op);
}

EXPORT void attend(const refusion::Attend* op) { refusion::cpu::amx::attend(*op); }

EXPORT long products() { return tiles::products; }

EXPORT void forbid(const char* begin, const char* end) {
  tiles::forbidden = begin;
  tiles::forbidden_end = end;
  tiles::stray_loads = 0;
}

EXPORT long stray_loads() { return tiles::stray_loads; }
