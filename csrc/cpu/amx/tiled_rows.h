// The product of row_product.h in AMX tiles. Sixteen rows of the matrix, 32 elements wide, are a left operand as they
// lie, so the matrix is never packed; sixteen packed rows in pairs of elements are a right one. The sums [id][row] are
// transposed on their way out, 16 x 16 at the end of the width.
#pragma once
#include "cpu/kernels/lane_rows.h"
#include "tiles.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

// Sixteen rows in words of two elements are laid out as for vectors.
struct TiledRows : LaneRows<BFloat16> {
  static_assert(kLanes == kSide && kWord == 2);
  static constexpr int64_t kStep = Product<BFloat16>::kStep;  // elements of a product, 64 bytes

  // Sums are written up to the next multiple of kSide.
  void multiply(const BFloat16* matrix, int64_t matrix_stride, int64_t width, int64_t ids, float* sums,
                int64_t sums_stride) const {
    for (int64_t id = 0; id < ids; id += 2 * kSide) {
      const int64_t first = ids - id < kSide ? ids - id : kSide;
      const int64_t second = ids - id - first < kSide ? ids - id - first : kSide;
      const TileShapes shapes(first, second);
      const Part part{matrix + id * matrix_stride, matrix_stride, width, first + second, sums + id, sums_stride};
      for (int64_t row = 0; row < count; row += 2 * kSide) {
        const bool two_blocks = count - row > kSide;
        if (second > 0) two_blocks ? add<2, 2>(part, row) : add<2, 1>(part, row);
        else two_blocks ? add<1, 2>(part, row) : add<1, 1>(part, row);
      }
    }
  }

 private:
  struct Part {
    const BFloat16* matrix;
    int64_t matrix_stride, width, ids;
    float* sums;
    int64_t sums_stride;
  };

  template <int kIds, int kRows>
  static void step(const BFloat16* matrix, int64_t matrix_bytes, const BFloat16* rows, int64_t rows_bytes) {
    _tile_loadd(4, matrix, matrix_bytes);
    _tile_loadd(6, rows, rows_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kRows == 2) {
      _tile_loadd(7, rows + kSide * kWord, rows_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kIds == 2) {
      _tile_loadd(5, reinterpret_cast<const char*>(matrix) + kSide * matrix_bytes, matrix_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kRows == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }

  // Up to 32 ids by up to 32 rows from `row` on.
  template <int kIds, int kRows>
  void add(const Part& part, int64_t row) const {
    constexpr int64_t kLine = 64;
    const int64_t matrix_bytes = part.matrix_stride * 2, rows_bytes = vectors_of(count) * kLine;
    const auto rows = [&](int64_t column) { return vector(column / kWord, row / kSide); };
    // The ids that come next usually lie behind these; every pass asks for its share of them, evenly.
    const int64_t passes = (count + 2 * kSide - 1) / (2 * kSide), pass = row / (2 * kSide);
    const int64_t lines = 2 * kSide / passes;
    const char* next = reinterpret_cast<const char*>(part.matrix + part.ids * part.matrix_stride) +
                       2 * kSide * part.width * 2 * pass / passes;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    int64_t i = 0;
    for (; i + kStep <= part.width; i += kStep, next += lines * kLine) {
      for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(next + line * kLine, 0, 2);
      step<kIds, kRows>(part.matrix + i, matrix_bytes, rows(i), rows_bytes);
    }
    if (i < part.width) {
      BFloat16 rest[2 * kSide][kStep] = {};
      for (int64_t id = 0; id < part.ids; ++id)
        std::memcpy(rest[id], part.matrix + id * part.matrix_stride + i, size_t(part.width - i) * 2);
      step<kIds, kRows>(rest[0], kStep * 2, rows(i), rows_bytes);
    }
    float products[kIds][kRows][kSide * kSide];
    _tile_stored(0, products[0][0], kLine);
    if constexpr (kRows == 2) _tile_stored(1, products[0][1], kLine);
    if constexpr (kIds == 2) _tile_stored(2, products[1][0], kLine);
    if constexpr (kIds == 2 && kRows == 2) _tile_stored(3, products[1][1], kLine);
    for (int64_t block = 0; block < kRows; ++block) {
      const int64_t first = row + block * kSide, some = count - first < kSide ? count - first : kSide;
      for (int64_t i = 0; i < kIds; ++i)
        transpose(products[i][block], kSide, part.sums + first * part.sums_stride + i * kSide, part.sums_stride, some);
    }
  }
};

}  // namespace
}  // namespace refusion::cpu::REFUSION_ISA
