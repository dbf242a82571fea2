// A register tile of dot products: a few packed rows against kTileIds rows of a matrix, both running along their width.
// Neither side is transposed: accumulator lanes are partial sums over the width, folded once per tile.
#pragma once
#include "cpu/simd.h"

namespace refusion::cpu::REFUSION_ISA {

constexpr int kTileIds = 4;
#if defined(__AVX512F__)
constexpr int kTileRows = 6;  // 24 accumulators of 32 registers
#else
constexpr int kTileRows = 3;  // 12 of 16
#endif

// How kStep elements at a time are multiplied, and the form of a packed row.
template <class T>
struct Product {
  using Packed = float;
  static constexpr int kStep = kLanes;
  static Floats packed(const float* p) { return load(p); }
  static Floats matrix(const T* p) { return load(p); }
  static Floats add(Floats sum, Floats a, Floats b) { return fma(a, b, sum); }
  static void pack(const T* from, float* to) { store(to, load(from)); }
};

#if defined(__AVX512BF16__)
template <>
struct Product<BFloat16> {
  using Packed = BFloat16;
  static constexpr int kStep = 2 * kLanes;
  static __m512i packed(const BFloat16* p) { return _mm512_loadu_si512(p); }
  static __m512i matrix(const BFloat16* p) { return _mm512_loadu_si512(p); }
  static Floats add(Floats sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, __m512bh(a), __m512bh(b)); }
  static void pack(const BFloat16* from, BFloat16* to) { std::memcpy(to, from, kStep * sizeof(BFloat16)); }
};
#endif

// Packs a row for Product<T>, padded with zeros to a whole number of steps.
template <class T>
inline void pack_row(const T* row, int64_t width, typename Product<T>::Packed* to) {
  constexpr int kStep = Product<T>::kStep;
  int64_t i = 0;
  for (; i + kStep <= width; i += kStep) Product<T>::pack(row + i, to + i);
  if (i == width) return;
  T rest[kStep] = {};
  std::memcpy(static_cast<void*>(rest), row + i, size_t(width - i) * sizeof(T));
  Product<T>::pack(rest, to + i);
}

// Sums of the lanes of four vectors.
inline void fold(const Floats* x, float* sums) {
#if defined(__AVX512F__)
  const Floats a = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
  const Floats b = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
  const __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);
  const Floats even = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d)), odd = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
  const Floats four = _mm512_add_ps(even, odd);
  const __m256 two = _mm256_add_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps(four, 1));
  const __m128 one = _mm_add_ps(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1));
  _mm_storeu_ps(sums, one);
#else
  for (int i = 0; i < 4; ++i) sums[i] = reduce_add(x[i]);
#endif
}

// Memory that a tile asks for while it computes, into the second-level cache: `step` bytes (64, 128 or 256) from
// `begin` on at every step. Asked for evenly, the next part of a matrix comes from memory while this one is multiplied.
struct Ahead {
  const char* begin;
  int64_t step;
};

// sums[row * sums_stride + id] = packed row . matrix row over `width` elements, for kRows rows and kTileIds ids.
template <int kRows, class T>
inline void dot_tile(const typename Product<T>::Packed* rows, int64_t rows_stride, const T* const* matrix,
                     int64_t width, const Ahead& ahead, float* sums, int64_t sums_stride) {
  using P = Product<T>;
  Floats sum[kRows][kTileIds];
  for (int row = 0; row < kRows; ++row)
    for (int id = 0; id < kTileIds; ++id) sum[row][id] = broadcast(0.0f);
  auto step = [&](const T* const* ids, int64_t at, int64_t column) {
    // Rows stay in registers and one id at a time joins them: 12 + 3 + 1 registers where there are 16.
    decltype(P::packed(rows)) h[kRows];
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) h[row] = P::packed(rows + row * rows_stride + column);
#pragma GCC unroll 4
    for (int id = 0; id < kTileIds; ++id) {
      const auto w = P::matrix(ids[id] + at);
#pragma GCC unroll 6
      for (int row = 0; row < kRows; ++row) sum[row][id] = P::add(sum[row][id], h[row], w);
    }
  };
  const char* ask = ahead.begin;
  const int64_t bytes = ahead.step;
  int64_t i = 0;
  for (; i + P::kStep <= width; i += P::kStep) {
    __builtin_prefetch(ask, 0, 2);
    if (bytes > 64) __builtin_prefetch(ask + 64, 0, 2);
    if (bytes > 128) {
      __builtin_prefetch(ask + 128, 0, 2);
      __builtin_prefetch(ask + 192, 0, 2);
    }
    ask += bytes;
    step(matrix, i, i);
  }
  if (i < width) {
    T rest[kTileIds][P::kStep] = {};
    const T* ids[kTileIds];
    for (int id = 0; id < kTileIds; ++id) {
      std::memcpy(static_cast<void*>(rest[id]), matrix[id] + i, size_t(width - i) * sizeof(T));
      ids[id] = rest[id];
    }
    step(ids, 0, i);
  }
  for (int row = 0; row < kRows; ++row) fold(sum[row], sums + row * sums_stride);
}

}  // namespace refusion::cpu::REFUSION_ISA
