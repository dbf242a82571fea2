// Which kernels run: asked of the CPU, the operating system and the environment once.
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "amx/ops.h"
#include "kernels.h"

#if REFUSION_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace refusion::cpu {

namespace baseline {
const Kernels& table();
}
#if REFUSION_X86
namespace avx2 {
const Kernels& table();
}
namespace avx512 {
const Kernels& table();
}
#endif
namespace {

constexpr const char* kNames[] = {"baseline", "avx2", "avx512", "amx"};
constexpr const char* kVariable = "REFUSION_EXT_MAX_ISA";

#if REFUSION_X86

bool bits(uint64_t value, uint64_t wanted) { return (value & wanted) == wanted; }

// State components that the operating system saves (XCR0); the instruction exists only where OSXSAVE is set.
uint64_t saved_state() {
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t(high) << 32 | low;
}

#if REFUSION_AMX
// Linux hands out the tile registers' state per process and on request (kernel 5.16 and later).
bool tiles_permitted() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

Isa ask_machine() {
  constexpr uint64_t kFma = 1u << 12, kOsxsave = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;
  constexpr uint64_t kAvx2 = 1u << 5, kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31, kBf16 = 1u << 5;
  constexpr uint64_t kAvxState = 0x6, kAvx512State = 0xe6;
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !bits(c, kFma | kOsxsave | kAvx | kF16c)) return Isa::baseline;
  const uint64_t state = saved_state();
  if (!bits(state, kAvxState) || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !bits(b, kAvx2)) return Isa::baseline;
  const uint32_t features = b;
  [[maybe_unused]] const uint32_t tile_features = d;
  const uint32_t subleaves = a;
  if (!bits(state, kAvx512State) || !bits(features, kF | kDq | kBw | kVl) || subleaves < 1) return Isa::avx2;
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !bits(a, kBf16)) return Isa::avx2;
#if REFUSION_AMX
  constexpr uint64_t kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kTileState = 0x60000;
  if (bits(tile_features, kAmxBf16 | kAmxTile) && bits(state, kTileState) && tiles_permitted()) return Isa::amx;
#endif
  return Isa::avx512;
}

#else

Isa ask_machine() { return Isa::baseline; }

#endif

Isa allowed_isa() {
  const char* cap = std::getenv(kVariable);
  if (!cap || !*cap) return found_isa();
  for (int level = 0; level < 4; ++level)
    if (!std::strcmp(cap, kNames[level])) return Isa(level) < found_isa() ? Isa(level) : found_isa();
  throw std::invalid_argument(std::string(kVariable) + " must be one of baseline, avx2, avx512, amx, got '" + cap +
                              "'");
}

Kernels choose() {
  switch (allowed_isa()) {
#if REFUSION_AMX
    case Isa::amx: {
      Kernels kernels = avx512::table();
      kernels.isa = Isa::amx;
      kernels.attend = amx::attend;
      kernels.linear = amx::linear;
      kernels.score_hidden = amx::score_hidden;
      return kernels;
    }
#endif
#if REFUSION_X86
    case Isa::avx512: return avx512::table();
    case Isa::avx2: return avx2::table();
#endif
    default: return baseline::table();
  }
}

}  // namespace

Isa found_isa() {
  static const Isa found = ask_machine();
  return found;
}

const Kernels& kernels() {
  static const Kernels chosen = choose();
  return chosen;
}

bool compiled(Isa isa) {
#if REFUSION_AMX
  return isa <= Isa::amx;
#elif REFUSION_X86
  return isa <= Isa::avx512;
#else
  return isa == Isa::baseline;
#endif
}

const char* name_of(Isa isa) { return kNames[int(isa)]; }

}  // namespace refusion::cpu
