// The product of row_product.h with ids along the lanes, for few rows: squares of the matrix are transposed in
// registers on their way in, which costs as much as four rows and is hidden where the matrix comes from memory.
#pragma once
#include "lane_words.h"

#if defined(__AVX512F__)

namespace refusion::cpu::REFUSION_ISA {

template <class T>
struct LaneIds : PackedRows<T> {
  static_assert(kHasLaneWords<T>);
  using Packed = typename PackedRows<T>::Packed;
  static constexpr int kMost = 8;  // rows; from there on LaneRows is faster
  static constexpr int64_t kSquare = kLanes * kWord<T>;  // elements across a square

  // Sums are written up to the next multiple of kLanes.
  void multiply(const T* matrix, int64_t matrix_stride, int64_t width, int64_t ids, float* sums,
                int64_t sums_stride) const {
    for (int64_t id = 0; id < ids; id += kLanes) {
      const T* ids_of[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) ids_of[i] = matrix + (id + i < ids ? id + i : ids - 1) * matrix_stride;
      // The ids that come next usually lie behind these.
      const char* next = reinterpret_cast<const char*>(matrix + (id + kLanes) * matrix_stride);
      add_rows<kMost>(ids_of, width, next, sums + id, sums_stride);
    }
  }

 private:
  template <int kRows>
  void add_rows(const T* const* ids, int64_t width, const char* next, float* sums, int64_t sums_stride) const {
    if (this->count == kRows) return add<kRows>(ids, width, next, sums, sums_stride);
    if constexpr (kRows > 1) add_rows<kRows - 1>(ids, width, next, sums, sums_stride);
  }

  // Sixteen ids by kRows rows.
  template <int kRows>
  void add(const T* const* ids, int64_t width, const char* next, float* sums, int64_t sums_stride) const {
    using P = Product<T>;
    Floats total[kRows], sum[kRows];
    for (int row = 0; row < kRows; ++row) total[row] = sum[row] = broadcast(0.0f);
    const auto join = [&] {
      for (int row = 0; row < kRows; ++row) {
        total[row] = total[row] + sum[row];
        sum[row] = broadcast(0.0f);
      }
    };
    const auto multiply_word = [&](__m512i word, int64_t column) {
      decltype(P::matrix(ids[0])) w;
      std::memcpy(&w, &word, sizeof w);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row)
        sum[row] = P::add(sum[row], broadcast_word(this->data + row * this->stride + column), w);
    };
    int64_t column = 0;
    for (; column + kSquare <= width; column += kSquare) {
      __m512i square[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i, next += 64) {
        __builtin_prefetch(next, 0, 2);
        square[i] = _mm512_loadu_si512(ids[i] + column);
      }
      transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) multiply_word(square[i], column + i * kWord<T>);
      if ((column + kSquare) % (kWordBlock * kWord<T>) == 0) join();
    }
    if (column < width) {
      T rest[kLanes][kSquare] = {};
      for (int i = 0; i < kLanes; ++i) std::memcpy(rest[i], ids[i] + column, size_t(width - column) * sizeof(T));
      alignas(64) __m512i square[kLanes];
      transpose(rest, kLanes, square, kLanes, kLanes);
      for (int i = 0; column < width; ++i, column += kWord<T>) multiply_word(square[i], column);
    }
    join();
    for (int row = 0; row < kRows; ++row) store(sums + row * sums_stride, total[row]);
  }
};

}  // namespace refusion::cpu::REFUSION_ISA

#endif
