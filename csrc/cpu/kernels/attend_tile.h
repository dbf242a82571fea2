// Vector pieces of attend: products of a key block with a tile of queries, and the softmax in between.
//
// A tile is up to 2 * kLanes query rows (token and grouped head), one per vector lane. Scores are taken as S^T = K Q^T
// and outputs as O^T = V^T P^T: keys and values are then the scalar operand and are read as they lie in the cache,
// softmax runs down the rows without any horizontal step, and only the queries are transposed, once.
#pragma once
#include "cpu/simd.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

constexpr int kTile = 2 * kLanes;
constexpr int kBlock = 128;           // keys between two rescalings; even, so that pairs of keys never straddle blocks
constexpr int64_t kMostDims = 256;    // head_dim at most
constexpr float kNothing = -1.7e38f;  // maximum before any key: finite, so that differences are never NaN

#if defined(__AVX512F__)
constexpr int kRows = 8;  // rows of a register block: kRows x 2 accumulators fit the register file
#elif defined(__AVX2__)
constexpr int kRows = 6;
#else
constexpr int kRows = 4;
#endif

// float32 operands, one dimension (or key) a step.
struct Singles {
  struct Setup {};  // what a thread needs while it computes
  using Element = float;
  static constexpr int kWidth = 1;
  static Floats add(Floats sum, float a, const float* b) { return fma(broadcast(a), load(b), sum); }
};

#if defined(__AVX512BF16__)
// bfloat16 operands, two dimensions (or keys) a step: twice the products for the same instructions.
struct Pairs {
  struct Setup {};
  typedef uint32_t Element __attribute__((may_alias, aligned(2)));
  static constexpr int kWidth = 2;
  static Floats add(Floats sum, uint32_t a, const Element* b) {
    return _mm512_dpbf16_ps(sum, __m512bh(_mm512_set1_epi32(int(a))), __m512bh(_mm512_loadu_si512(b)));
  }
};

// Up to 32 elements, zeros behind the last.
inline __m512i load_pairs(const BFloat16* p, int64_t n) {
  if (n >= 32) return _mm512_loadu_si512(p);
  return _mm512_maskz_loadu_epi16(n > 0 ? (1u << n) - 1 : 0, p);
}
#endif

// c[r][lane] = sum over steps of a[r][step] * b[step][lane], on top of c * keep where `keep` is given.
template <class Kind, int R, int V>
inline void multiply(const typename Kind::Element* a, int64_t a_row, int64_t a_step, const typename Kind::Element* b,
                     int64_t steps, float* c, const Floats* keep) {
  Floats sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v] = broadcast(0.0f);
  for (int64_t s = 0; s < steps; ++s)
#pragma GCC unroll 8  // GCC would keep the sums of some shapes in memory
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v)
        sum[r][v] = Kind::add(sum[r][v], a[r * a_row + s * a_step], b + s * kTile + v * kLanes);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) {
      float* to = c + r * kTile + v * kLanes;
      store(to, keep ? fma(load(to), keep[v], sum[r][v]) : sum[r][v]);  // last: small sums round less than the total
    }
}

template <class Kind, int V>
inline void multiply_rows(int64_t rows, const typename Kind::Element* a, int64_t a_row, int64_t a_step,
                          const typename Kind::Element* b, int64_t steps, float* c, const Floats* keep) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    multiply<Kind, kRows, V>(a + r * a_row, a_row, a_step, b, steps, c + r * kTile, keep);
  if constexpr (kRows > 4)
    if (r + 4 <= rows) multiply<Kind, 4, V>(a + r * a_row, a_row, a_step, b, steps, c + r * kTile, keep), r += 4;
  if (r + 2 <= rows) multiply<Kind, 2, V>(a + r * a_row, a_row, a_step, b, steps, c + r * kTile, keep), r += 2;
  if (r < rows) multiply<Kind, 1, V>(a + r * a_row, a_row, a_step, b, steps, c + r * kTile, keep);
}

// x where begin <= key < end, else minus infinity.
inline Floats visible(Floats x, Floats key, Floats begin, Floats end) {
  const Floats none = broadcast(-__builtin_inff());
#if defined(__AVX512F__)
  const __mmask16 seen = _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(key, begin, _CMP_GE_OQ), key, end, _CMP_LT_OQ);
  return _mm512_mask_mov_ps(none, seen, x);
#elif defined(__AVX2__)
  const __m256 seen = _mm256_and_ps(_mm256_cmp_ps(key, begin, _CMP_GE_OQ), _mm256_cmp_ps(key, end, _CMP_LT_OQ));
  return _mm256_blendv_ps(none, x, seen);
#else
  return ((key >= begin) & (key < end)) ? x : none;
#endif
}

// 2^t for t <= 0, exactly 0 for a key that is not seen.
inline Floats weight(Floats t) {
#if defined(__AVX512F__)
  return exp2(t);
#elif defined(__AVX2__)
  const Floats bound = broadcast(-126.0f);
  return _mm256_and_ps(exp2(at_least(t, bound)), _mm256_cmp_ps(t, bound, _CMP_GE_OQ));
#else
  const Floats bound = broadcast(-126.0f);
  return t >= bound ? exp2(at_least(t, bound)) : broadcast(0.0f);
#endif
}

// Sum over the lanes of x[i] in lane i.
inline Floats sum_lanes(const Floats (&x)[kLanes]) {
#if defined(__AVX512F__)
  Floats y[8], z[4];
  for (int i = 0; i < 8; ++i)
    y[i] = _mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]) + _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]);
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(y[2 * i]), b = _mm512_castps_pd(y[2 * i + 1]);
    z[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) + _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
  }
  for (int i = 0; i < 4; i += 2)
    z[i / 2] = _mm512_shuffle_f32x4(z[i], z[i + 1], 0x88) + _mm512_shuffle_f32x4(z[i], z[i + 1], 0xdd);
  return _mm512_shuffle_f32x4(z[0], z[1], 0x88) + _mm512_shuffle_f32x4(z[0], z[1], 0xdd);
#elif defined(__AVX2__)
  const Floats low = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
  const Floats high = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
  return _mm256_permute2f128_ps(low, high, 0x20) + _mm256_permute2f128_ps(low, high, 0x31);
#else
  return Floats{reduce_add(x[0]), reduce_add(x[1]), reduce_add(x[2]), reduce_add(x[3])};
#endif
}

inline bool all_finite(const float* x, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * 0.0f;
  return sum == 0.0f;
}

}  // namespace
}  // namespace refusion::cpu::REFUSION_ISA
