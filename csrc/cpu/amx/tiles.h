// The eight AMX tiles: sixteen rows of 64 bytes each, 16 x 16 x 32 multiply-adds of bfloat16 in one instruction. Tiles
// 4 and 5 are left operands, 6 and 7 right ones, 0 to 3 the sums of 4 x 6, 4 x 7, 5 x 6 and 5 x 7.
#pragma once
#include <cstdint>

#include "cpu/simd.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

constexpr int64_t kSide = 16;  // rows of a tile, and float32 in one

// The tiles of this thread, for as long as it lives.
struct TileShapes {
  // Rows of the left operands 4 and 5 and of their sums; tile 5 is not used when it has none.
  explicit TileShapes(int64_t rows_4 = kSide, int64_t rows_5 = kSide) {
    const auto a = uint8_t(rows_4), b = uint8_t(rows_5 > 0 ? rows_5 : kSide);
    struct alignas(64) {
      uint8_t palette, start_row, reserved[14];
      uint16_t bytes[16];
      uint8_t rows[16];
    } const configuration{1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {a, a, b, b, a, b, kSide, kSide}};
    _tile_loadconfig(&configuration);
  }
  ~TileShapes() { _tile_release(); }
  TileShapes(const TileShapes&) = delete;
  TileShapes& operator=(const TileShapes&) = delete;
};

}  // namespace
}  // namespace refusion::cpu::REFUSION_ISA
