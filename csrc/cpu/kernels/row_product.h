// A panel of packed rows against the rows of a matrix that is read once: score_hidden and linear.
#pragma once
#include "dot_tile.h"

namespace refusion::cpu::REFUSION_ISA {

constexpr int64_t kPanel = 64;  // rows in one pass over the matrix: by then memory is no longer the limit
constexpr int64_t kGroup = 64;  // rows of the matrix that one call of `multiply` takes at most
constexpr int64_t kParallelProducts = 1 << 18;  // below, a parallel region costs more than it saves

template <int kRows, class T>
void tile(int rows, const typename Product<T>::Packed* packed, int64_t packed_stride, const T* const* ids,
          int64_t width, const Ahead& ahead, float* sums, int64_t sums_stride) {
  if (rows == kRows) return dot_tile<kRows>(packed, packed_stride, ids, width, ahead, sums, sums_stride);
  if constexpr (kRows > 1) tile<kRows - 1>(rows, packed, packed_stride, ids, width, ahead, sums, sums_stride);
}

// Rows in the form that a product takes: filled row by row (pack_row), arranged, then multiplied.
template <class T>
struct PackedRows {
  using Element = T;
  using Packed = typename Product<T>::Packed;

  Packed* data;  // [room_for(count), stride]
  int64_t count, stride;

  // Elements from one row to the next: whole steps, so that the rest of a row can be multiplied as zeros.
  static int64_t stride_of(int64_t width) {
    constexpr int64_t kStep = Product<T>::kStep;
    return (width + kStep - 1) / kStep * kStep;
  }
  // Rows of memory.
  static int64_t room_for(int64_t count) { return count; }
  // Where a row is packed, before all of them are arranged.
  Packed* row(int64_t index) const { return data + index * stride; }
  void arrange() const {}

  // sums[row * sums_stride + id] = packed row . matrix row, for `ids` rows of the matrix, up to kGroup; sums are
  // written up to the next multiple of kTileIds. A sum does not depend on how many rows or ids are asked for.
  void multiply(const T* matrix, int64_t matrix_stride, int64_t width, int64_t ids, float* sums,
                int64_t sums_stride) const {
    constexpr int64_t kSize = int64_t(sizeof(T)), kLine = 64, kStepBytes = kTileIds * Product<T>::kStep * kSize;
    const int64_t blocks = (count + kTileRows - 1) / kTileRows;
    for (int64_t id = 0; id < ids; id += kTileIds) {
      const T* row_of[kTileIds];
      for (int64_t i = 0; i < kTileIds; ++i) row_of[i] = matrix + (id + i < ids ? id + i : ids - 1) * matrix_stride;
      // The ids that come next usually lie behind these; every block of rows asks for its share of them.
      const char* next = reinterpret_cast<const char*>(matrix + (id + kTileIds) * matrix_stride);
      const int64_t step = (kStepBytes / blocks + kLine - 1) / kLine * kLine;
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t row = count * block / blocks, rows = count * (block + 1) / blocks - row;
        const Ahead ahead{next + kTileIds * width * kSize * block / blocks, step};
        tile<kTileRows>(int(rows), data + row * stride, stride, row_of, width, ahead, sums + row * sums_stride + id,
                        sums_stride);
      }
    }
  }
};

}  // namespace refusion::cpu::REFUSION_ISA
