// Squares of 32-bit words: kLanes rows of kLanes words.
#pragma once
#include "cpu/simd.h"

namespace refusion::cpu::REFUSION_ISA {

#if defined(__AVX512F__)

// Vector i becomes word i of all sixteen.
inline void transpose(__m512i* rows) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)  // b[i + c]: column 4 q + c of rows i to i + 3 in every quarter q
    for (int c = 0; c < 2; ++c) {
      b[i + 2 * c] = _mm512_unpacklo_epi64(a[i + c], a[i + 2 + c]);
      b[i + 2 * c + 1] = _mm512_unpackhi_epi64(a[i + c], a[i + 2 + c]);
    }
  for (int c = 0; c < 4; ++c) {
    const __m512i low_even = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88);
    const __m512i low_odd = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
    const __m512i high_even = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
    const __m512i high_odd = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
    rows[c] = _mm512_shuffle_i32x4(low_even, high_even, 0x88);
    rows[4 + c] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
    rows[8 + c] = _mm512_shuffle_i32x4(low_even, high_even, 0xdd);
    rows[12 + c] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
  }
}

#elif defined(__AVX2__)

// Vector i becomes word i of all eight.
inline void transpose(__m256i* rows) {
  __m256i a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)  // b[i + c]: column 4 h + c of rows i to i + 3 in both halves h
    for (int c = 0; c < 2; ++c) {
      b[i + 2 * c] = _mm256_unpacklo_epi64(a[i + c], a[i + 2 + c]);
      b[i + 2 * c + 1] = _mm256_unpackhi_epi64(a[i + c], a[i + 2 + c]);
    }
  for (int c = 0; c < 4; ++c) {
    rows[c] = _mm256_permute2x128_si256(b[c], b[4 + c], 0x20);
    rows[4 + c] = _mm256_permute2x128_si256(b[c], b[4 + c], 0x31);
  }
}

#endif

// `rows` rows of the result; strides in words. May be done in place.
inline void transpose(const void* from, int64_t from_stride, void* to, int64_t to_stride, int64_t rows) {
  const auto* words = static_cast<const uint32_t*>(from);
  auto* out = static_cast<uint32_t*>(to);
#if defined(__AVX512F__)
  __m512i square[16];
  for (int i = 0; i < 16; ++i) square[i] = _mm512_loadu_si512(words + i * from_stride);
  transpose(square);
  for (int64_t i = 0; i < rows; ++i) _mm512_storeu_si512(out + i * to_stride, square[i]);
#elif defined(__AVX2__)
  __m256i square[8];
  const auto at = [](const uint32_t* p) { return reinterpret_cast<const __m256i*>(p); };
  for (int i = 0; i < 8; ++i) square[i] = _mm256_loadu_si256(at(words + i * from_stride));
  transpose(square);
  for (int64_t i = 0; i < rows; ++i)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * to_stride), square[i]);
#else
  uint32_t square[kLanes][kLanes];
  for (int i = 0; i < kLanes; ++i)
    for (int j = 0; j < kLanes; ++j) square[j][i] = words[i * from_stride + j];
  for (int64_t i = 0; i < rows; ++i) std::memcpy(out + i * to_stride, square[i], sizeof square[i]);
#endif
}

}  // namespace refusion::cpu::REFUSION_ISA
