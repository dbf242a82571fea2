// The product of row_product.h with packed rows along the lanes: a vector holds one word (a float32, or a pair of
// bfloat16) of sixteen rows, and a word of a matrix row is broadcast to it. Nothing is folded at the end of the width,
// which at some hundred elements takes dot products half of their time; but it wants many rows.
#pragma once
#include "row_product.h"
#include "transpose.h"

#if defined(__AVX512F__)

namespace refusion::cpu::REFUSION_ISA {

template <class T>
struct LaneRows : PackedRows<T> {
  using Packed = typename PackedRows<T>::Packed;
  static_assert(sizeof(Packed) == sizeof(T), "words of rows and matrix are multiplied as they are");
  static constexpr int64_t kWord = 4 / int64_t(sizeof(T));  // elements
  static constexpr int kVectors = 4;                        // of rows in one pass over the matrix
  static constexpr int64_t kBlock = 128;  // words summed up before they join the total: keeps rounding small

  // An odd number of steps: rows 4096 bytes apart would all want the same lines of the first cache.
  static int64_t stride_of(int64_t width) {
    constexpr int64_t kStep = Product<T>::kStep;
    return ((width + kStep - 1) / kStep | 1) * kStep;
  }
  // Whole vectors; what stands in the rows behind the last goes into sums that nobody reads.
  static int64_t room_for(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

  // In every square of sixteen rows and sixteen words, row r becomes word r of all rows.
  void arrange() const {
    const int64_t words = this->stride / kWord;
    for (int64_t row = 0; row < this->count; row += kLanes) {
      Packed* const block = this->data + row * this->stride;
      for (int64_t word = 0; word < words; word += kLanes)
        transpose(block + word * kWord, words, block + word * kWord, words, kLanes);
    }
  }

  // Sums are written up to the next multiple of kTileIds.
  void multiply(const T* matrix, int64_t matrix_stride, int64_t width, int64_t ids, float* sums,
                int64_t sums_stride) const {
    for (int64_t id = 0; id < ids; id += kTileIds) {
      const T* row_of[kTileIds];
      for (int64_t i = 0; i < kTileIds; ++i) row_of[i] = matrix + (id + i < ids ? id + i : ids - 1) * matrix_stride;
      for (int64_t row = 0; row < this->count; row += kVectors * kLanes) {
        float* const to = sums + row * sums_stride + id;
        switch ((this->count - row + kLanes - 1) / kLanes) {
          case 1: add<1>(row_of, width, row, to, sums_stride); break;
          case 2: add<2>(row_of, width, row, to, sums_stride); break;
          case 3: add<3>(row_of, width, row, to, sums_stride); break;
          default: add<kVectors>(row_of, width, row, to, sums_stride);
        }
      }
    }
  }

 private:
  static auto broadcast_word(const T* from, int64_t elements) {
    int32_t word = 0;
    std::memcpy(&word, from, size_t(elements) * sizeof(T));
    if constexpr (kWord == 1) return _mm512_castsi512_ps(_mm512_set1_epi32(word));
    else return _mm512_set1_epi32(word);
  }

  // kTileIds matrix rows by V vectors of rows from `row` on.
  template <int V>
  void add(const T* const* matrix, int64_t width, int64_t row, float* sums, int64_t sums_stride) const {
    using P = Product<T>;
    Floats total[kTileIds][V], sum[kTileIds][V];
    const auto each = [](auto change) {
      for (int id = 0; id < kTileIds; ++id)
        for (int v = 0; v < V; ++v) change(id, v);
    };
    each([&](int id, int v) { total[id][v] = broadcast(0.0f); });
    const Packed* const block = this->data + row * this->stride;
    const auto step = [&](int64_t word, int64_t elements) {
      const Packed* const from = block + word % kLanes * this->stride + word / kLanes * kLanes * kWord;
      decltype(P::packed(from)) h[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) h[v] = P::packed(from + v * kLanes * this->stride);
#pragma GCC unroll 4
      for (int id = 0; id < kTileIds; ++id) {
        const auto w = broadcast_word(matrix[id] + word * kWord, elements);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[id][v] = P::add(sum[id][v], h[v], w);
      }
    };
    const int64_t words = width / kWord;
    for (int64_t first = 0; first * kWord < width; first += kBlock) {
      const int64_t end = first + kBlock < words ? first + kBlock : words;
      each([&](int id, int v) { sum[id][v] = broadcast(0.0f); });
      for (int64_t word = first; word < end; ++word) step(word, kWord);
      if (words * kWord < width && words < first + kBlock) step(words, width - words * kWord);
      each([&](int id, int v) { total[id][v] = total[id][v] + sum[id][v]; });
    }
    for (int v = 0; v < V; ++v) {
      const Floats column[kTileIds] = {total[0][v], total[1][v], total[2][v], total[3][v]};
      const int64_t first = row + v * kLanes, left = this->count - first;
      store_transposed(column, left < kLanes ? left : kLanes, sums + v * kLanes * sums_stride, sums_stride);
    }
  }

  // to[lane * stride + id] = column[id][lane] for the first `rows` lanes.
  static void store_transposed(const Floats* column, int64_t rows, float* to, int64_t stride) {
    static_assert(kTileIds == 4, "a row's sums are a quarter of a vector");
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(column[0], column[1]));
    const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(column[0], column[1]));
    const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(column[2], column[3]));
    const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(column[2], column[3]));
    const __m512d quarters[4] = {_mm512_unpacklo_pd(a, c), _mm512_unpackhi_pd(a, c), _mm512_unpacklo_pd(b, d),
                                 _mm512_unpackhi_pd(b, d)};  // of quarters[i], quarter q belongs to row 4 q + i
    alignas(64) float all[4][kLanes];
    for (int i = 0; i < 4; ++i) store(all[i], _mm512_castpd_ps(quarters[i]));
    for (int64_t row = 0; row < rows; ++row) std::memcpy(to + row * stride, all[row % 4] + row / 4 * 4, 16);
  }
};

}  // namespace refusion::cpu::REFUSION_ISA

#endif
