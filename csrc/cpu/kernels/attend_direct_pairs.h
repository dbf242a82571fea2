// The two passes of attend_direct.h for bfloat16 with AVX512-BF16: half the instructions, which then no longer hide the
// speed of the caches.
#pragma once
#include <cstring>
#include <type_traits>

#include "attend_work.h"

#if defined(__AVX512BF16__)

namespace refusion::cpu::REFUSION_ISA {
namespace {

// scores[r][key] of `count` <= kBlock keys. kSteps: of 32 dimensions, or 0 where that is known at run time only.
template <int R, int kSteps>
inline void pair_scores(const BFloat16 (*q)[kMostDims], const BFloat16* k, int64_t stride, int64_t count,
                        int64_t head_dim, float (*scores)[kBlock]) {
  const int64_t steps = kSteps ? kSteps : ceil_div(head_dim, 32);
  for (int64_t first = 0; first < count; first += kLanes) {
    Floats sums[R][kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const BFloat16* row = k + least(first + i, count - 1) * stride;
      Floats sum[R];
      for (int r = 0; r < R; ++r) sum[r] = broadcast(0.0f);
      for (int64_t s = 0; s < steps; ++s) {
        const __m512bh x = __m512bh(load_pairs(row + s * 32, kSteps ? 32 : head_dim - s * 32));
        for (int r = 0; r < R; ++r)
          sum[r] = _mm512_dpbf16_ps(sum[r], x, __m512bh(_mm512_loadu_si512(q[r] + s * 32)));
      }
      for (int r = 0; r < R; ++r) sums[r][i] = sum[r];
    }
    for (int r = 0; r < R; ++r) store(scores[r] + first, sum_lanes(sums[r]));
  }
}

// out[r] += weights[r][key] * v[key], C vectors from dimension d. Two keys at a time: their rows interleave into pairs.
template <int R, int C>
inline void pair_values(const BFloat16* v, int64_t stride, int64_t count, int64_t head_dim, int64_t d,
                        const BFloat16 (*weights)[kBlock], float (*out)[kMostDims + kLanes]) {
  // Interleaving works within 128 bits: `low` are dimensions 0-3, 8-11, 16-19, 24-27 of each 32.
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
  const __m512i high = _mm512_setr_epi32(4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  const __m512i back_low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i back_high = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  Floats sum[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; c += 2) {
      const Floats a = load(out[r] + d + c * kLanes), b = load(out[r] + d + (c + 1) * kLanes);
      sum[r][c] = _mm512_permutex2var_ps(a, low, b);
      sum[r][c + 1] = _mm512_permutex2var_ps(a, high, b);
    }
  const auto add = [&](int64_t key, auto whole, bool two) {
    const BFloat16 *even = v + key * stride + d, *odd = even + stride;
#pragma GCC unroll 4
    for (int c = 0; c < C; c += 2) {
      const int64_t n = decltype(whole)::value ? 32 : head_dim - d - c * kLanes;
      const __m512i a = load_pairs(even + c * kLanes, n);
      const __m512i b = two ? load_pairs(odd + c * kLanes, n) : _mm512_setzero_si512();
      const __m512bh x = __m512bh(_mm512_unpacklo_epi16(a, b)), y = __m512bh(_mm512_unpackhi_epi16(a, b));
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        int32_t pair = 0;
        std::memcpy(&pair, weights[r] + key, two ? 4 : 2);
        const __m512bh w = __m512bh(_mm512_set1_epi32(pair));
        sum[r][c] = _mm512_dpbf16_ps(sum[r][c], w, x);
        sum[r][c + 1] = _mm512_dpbf16_ps(sum[r][c + 1], w, y);
      }
    }
  };
  int64_t key = 0;
  if (d + C * kLanes <= head_dim) {
    for (; key + 2 <= count; key += 2) add(key, std::true_type(), true);
  } else {
    for (; key + 2 <= count; key += 2) add(key, std::false_type(), true);
  }
  if (key < count) add(key, std::false_type(), false);
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; c += 2) {
      store(out[r] + d + c * kLanes, _mm512_permutex2var_ps(sum[r][c], back_low, sum[r][c + 1]));
      store(out[r] + d + (c + 1) * kLanes, _mm512_permutex2var_ps(sum[r][c], back_high, sum[r][c + 1]));
    }
}

}  // namespace
}  // namespace refusion::cpu::REFUSION_ISA

#endif
