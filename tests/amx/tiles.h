// AMX tiles in plain C++, under the names of the intrinsics: what the tests put in front of the AMX source (-include)
// so that it runs on a machine without AMX. Every instruction checks what the hardware would fault on or leave
// undefined.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace tiles {

struct Configuration {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};

struct Tile {
  uint8_t row[16][64];
};

struct State {
  bool configured = false;
  Configuration configuration;
  Tile tile[8];
};

inline thread_local State state;

// Of all threads, read by the tests.
inline long products = 0;                                    // were tiles used at all
inline const char *forbidden = nullptr, *forbidden_end = nullptr;
inline long stray_loads = 0;                                 // rows loaded from forbidden .. forbidden_end

inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "tile emulation: %s\n", what);
  std::abort();
}

inline void load_configuration(const void* from) {
  Configuration c;
  std::memcpy(&c, from, sizeof c);
  require(c.palette == 1 && c.start_row == 0, "palette must be 1 and the start row 0");
  for (uint8_t x : c.reserved) require(x == 0, "reserved bytes must be 0");
  for (int t = 0; t < 8; ++t) require(c.rows[t] <= 16 && c.bytes[t] <= 64, "shape");
  for (int t = 8; t < 16; ++t) require(!c.rows[t] && !c.bytes[t], "shape");
  state = State{true, c, {}};
}

inline void release() { state.configured = false; }

inline Tile& tile_of(int t) {
  require(state.configured, "no configuration is loaded");
  require(t >= 0 && t < 8 && state.configuration.rows[t] && state.configuration.bytes[t], "the tile has no shape");
  return state.tile[t];
}

inline void zero(int t) { std::memset(&tile_of(t), 0, sizeof(Tile)); }

inline void load(int t, const void* base, long stride) {
  Tile& tile = tile_of(t);
  std::memset(&tile, 0, sizeof tile);
  for (int r = 0; r < state.configuration.rows[t]; ++r) {
    const char* row = static_cast<const char*>(base) + r * stride;
    if (row < forbidden_end && row + state.configuration.bytes[t] > forbidden)
      __atomic_add_fetch(&stray_loads, 1, __ATOMIC_RELAXED);
    std::memcpy(tile.row[r], row, state.configuration.bytes[t]);
  }
}

inline void store(int t, void* base, long stride) {
  Tile& tile = tile_of(t);
  for (int r = 0; r < state.configuration.rows[t]; ++r)
    std::memcpy(static_cast<char*>(base) + r * stride, tile.row[r], state.configuration.bytes[t]);
}

inline float bfloat16_at(const uint8_t* row, int i) {
  uint16_t half;
  std::memcpy(&half, row + 2 * i, 2);
  const uint32_t bits = uint32_t(half) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return std::fpclassify(x) == FP_SUBNORMAL ? 0 : x;  // the instruction takes denormals for zeros
}

// c[m][n] += a[m][2k] * b[k][2n] + a[m][2k + 1] * b[k][2n + 1]
inline void multiply(int c, int a, int b) {
  Tile &sums = tile_of(c), &left = tile_of(a), &right = tile_of(b);
  const auto& shape = state.configuration;
  require(c != a && c != b && a != b, "operands must be three tiles");
  require(shape.rows[c] == shape.rows[a] && shape.bytes[c] == shape.bytes[b], "shapes of the sums");
  require(shape.bytes[a] == 4 * shape.rows[b], "shapes of the factors");
  for (int m = 0; m < shape.rows[c]; ++m)
    for (int n = 0; n < shape.bytes[c] / 4; ++n) {
      float sum;
      std::memcpy(&sum, sums.row[m] + 4 * n, 4);
      for (int k = 0; k < shape.rows[b]; ++k)
        for (int i = 0; i < 2; ++i)
          sum = std::fma(bfloat16_at(left.row[m], 2 * k + i), bfloat16_at(right.row[k], 2 * n + i), sum);
      std::memcpy(sums.row[m] + 4 * n, &sum, 4);
    }
  __atomic_add_fetch(&products, 1, __ATOMIC_RELAXED);
}

}  // namespace tiles

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) tiles::load_configuration(from)
#define _tile_release() tiles::release()
#define _tile_zero(t) tiles::zero(t)
#define _tile_loadd(t, base, stride) tiles::load(t, base, stride)
#define _tile_stored(t, base, stride) tiles::store(t, base, stride)
#define _tile_dpbf16ps(c, a, b) tiles::multiply(c, a, b)
