// The product of row_product.h with packed rows along the lanes: a word of a matrix row is broadcast to sixteen of them,
// and serves up to 64. Nothing is folded at the end of the width. Fewer than sixteen rows leave lanes idle (lane_ids.h).
#pragma once
#include "lane_words.h"

namespace refusion::cpu::REFUSION_ISA {

template <class T>
struct LaneRows;

#if defined(__AVX512F__)
template <class T>
struct LaneRows : PackedRows<T> {
  static_assert(kHasLaneWords<T>);
  using Packed = typename PackedRows<T>::Packed;
  static constexpr int64_t kWord = REFUSION_ISA::kWord<T>;

  static int64_t vectors_of(int64_t count) { return (count + kLanes - 1) / kLanes; }
  // Rows as they come lie behind the arranged ones. What stands in the rows behind the last one goes into sums that
  // nobody reads.
  static int64_t room_for(int64_t count) { return 2 * vectors_of(count) * kLanes; }
  Packed* row(int64_t index) const { return this->data + (vectors_of(this->count) * kLanes + index) * this->stride; }

  // From [row][word] to [word][row], sixteen rows and words at a time.
  void arrange() const {
    const int64_t vectors = vectors_of(this->count), words = this->stride / kWord;
    for (int64_t v = 0; v < vectors; ++v)
      for (int64_t word = 0; word < words; word += kLanes)
        transpose(row(v * kLanes) + word * kWord, words, vector(word, v), vectors * kLanes, kLanes);
  }

  // Sums are written up to the next multiple of 8.
  void multiply(const T* matrix, int64_t matrix_stride, int64_t width, int64_t ids, float* sums,
                int64_t sums_stride) const {
    switch (vectors_of(this->count)) {
      case 1: return add_all<1, 8>(matrix, matrix_stride, width, ids, sums, sums_stride);
      case 2: return add_all<2, 8>(matrix, matrix_stride, width, ids, sums, sums_stride);
      case 3: return add_all<3, 8>(matrix, matrix_stride, width, ids, sums, sums_stride);
      default: return add_all<4, 4>(matrix, matrix_stride, width, ids, sums, sums_stride);
    }
  }

 protected:
  // Word `word` of the sixteen rows of vector `v`.
  Packed* vector(int64_t word, int64_t v) const {
    return this->data + (word * vectors_of(this->count) + v) * kLanes * kWord;
  }

 private:
  static_assert(kPanel <= 4 * kLanes);

  template <int V, int kIds>
  void add_all(const T* matrix, int64_t matrix_stride, int64_t width, int64_t ids, float* sums,
               int64_t sums_stride) const {
    for (int64_t id = 0; id < ids; id += kIds) {
      const T* row_of[kIds];
      for (int64_t i = 0; i < kIds; ++i) row_of[i] = matrix + (id + i < ids ? id + i : ids - 1) * matrix_stride;
      // The ids that come next usually lie behind these.
      const char* next = reinterpret_cast<const char*>(matrix + (id + kIds) * matrix_stride);
      add<V, kIds>(row_of, width, next, sums + id, sums_stride);
    }
  }

  // kIds matrix rows by V vectors of rows.
  template <int V, int kIds>
  void add(const T* const* matrix, int64_t width, const char* next, float* sums, int64_t sums_stride) const {
    using P = Product<T>;
    Floats total[kIds][V], sum[kIds][V];
    const auto each = [](auto change) {
      for (int id = 0; id < kIds; ++id)
        for (int v = 0; v < V; ++v) change(id, v);
    };
    each([&](int id, int v) { total[id][v] = broadcast(0.0f); });
    const auto step = [&](int64_t word, int64_t elements) {
      decltype(P::packed(this->data)) h[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) h[v] = P::packed(this->data + (word * V + v) * kLanes * kWord);
#pragma GCC unroll 8
      for (int id = 0; id < kIds; ++id) {
        const auto w = broadcast_word(matrix[id] + word * kWord, elements);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[id][v] = P::add(sum[id][v], h[v], w);
      }
    };
    const int64_t words = width / kWord;
    for (int64_t first = 0; first * kWord < width; first += kWordBlock) {
      const int64_t end = first + kWordBlock < words ? first + kWordBlock : words;
      each([&](int id, int v) { sum[id][v] = broadcast(0.0f); });
      for (int64_t word = first; word < end; ++word, next += 64) {
        __builtin_prefetch(next, 0, 2);
        step(word, kWord);
      }
      if (words * kWord < width && words < first + kWordBlock) step(words, width - words * kWord);
      each([&](int id, int v) { total[id][v] = total[id][v] + sum[id][v]; });
    }
    for (int id = 0; id < kIds; id += 4)
      for (int v = 0; v < V; ++v) {
        const Floats column[4] = {total[id][v], total[id + 1][v], total[id + 2][v], total[id + 3][v]};
        const int64_t first = v * kLanes, left = this->count - first;
        store_transposed(column, left < kLanes ? left : kLanes, sums + first * sums_stride + id, sums_stride);
      }
  }

  // to[lane * stride + id] = column[id][lane] for the first `rows` lanes and four ids.
  static void store_transposed(const Floats* column, int64_t rows, float* to, int64_t stride) {
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(column[0], column[1]));
    const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(column[0], column[1]));
    const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(column[2], column[3]));
    const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(column[2], column[3]));
    const __m512d quarters[4] = {_mm512_unpacklo_pd(a, c), _mm512_unpackhi_pd(a, c), _mm512_unpacklo_pd(b, d),
                                 _mm512_unpackhi_pd(b, d)};  // of quarters[i], quarter q belongs to row 4 q + i
    const auto quarter = [&](int64_t row) {
      const __m512 all = _mm512_castpd_ps(quarters[row % 4]);
      switch (row / 4) {
        case 0: return _mm512_castps512_ps128(all);
        case 1: return _mm512_extractf32x4_ps(all, 1);
        case 2: return _mm512_extractf32x4_ps(all, 2);
        default: return _mm512_extractf32x4_ps(all, 3);
      }
    };
    if (rows == kLanes) {
#pragma GCC unroll 16
      for (int64_t row = 0; row < kLanes; ++row) _mm_storeu_ps(to + row * stride, quarter(row));
      return;
    }
    for (int64_t row = 0; row < rows; ++row) _mm_storeu_ps(to + row * stride, quarter(row));
  }
};
#endif

}  // namespace refusion::cpu::REFUSION_ISA
