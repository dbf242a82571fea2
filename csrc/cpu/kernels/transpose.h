// Squares of 32-bit words in vector registers.
#pragma once
#include "cpu/simd.h"

#if defined(__AVX512F__)

namespace refusion::cpu::REFUSION_ISA {

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

// 16 x 16 words of 32 bits, `rows` rows of the result; strides in words. May be done in place.
inline void transpose(const void* from, int64_t from_stride, void* to, int64_t to_stride, int64_t rows) {
  __m512i square[16];
  const auto* words = static_cast<const uint32_t*>(from);
  for (int i = 0; i < 16; ++i) square[i] = _mm512_loadu_si512(words + i * from_stride);
  transpose(square);
  auto* out = static_cast<uint32_t*>(to);
  for (int64_t i = 0; i < rows; ++i) _mm512_storeu_si512(out + i * to_stride, square[i]);
}

}  // namespace refusion::cpu::REFUSION_ISA

#endif
