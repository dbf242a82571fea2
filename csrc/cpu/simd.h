// One vector of float32 at the width of the instruction set being compiled, and what the kernels do with it.
// Everything lives in the instruction set's namespace: an inline function outside of it could be linked from another
// set's object and meet an instruction that the machine lacks.
#pragma once
#include <cstdint>
#include <cstring>

#include "refusion/dtype.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace refusion::cpu::REFUSION_ISA {

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

#if defined(__AVX512F__)
constexpr int kLanes = 16;
using Floats = __m512;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
using Floats = __m256;
#else
constexpr int kLanes = 4;
typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint16_t Halves __attribute__((vector_size(8)));
#endif

// Scalar conversions, exact both ways; to the nearest, ties to even. NaN stays NaN.

inline float to_float(float x) { return x; }

inline float to_float(BFloat16 x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

inline float to_float(Float16 x) {
  // A half's exponent and mantissa, moved to where a float has them, are off by 2^112; infinity and NaN need more.
  uint32_t bits = uint32_t(x.bits & 0x7fff) << 13;
  if (bits >= 0x0f800000u) bits |= 0x7f800000u;
  float y;
  std::memcpy(&y, &bits, 4);
  y *= 0x1p112f;
  std::memcpy(&bits, &y, 4);
  bits |= uint32_t(x.bits & 0x8000) << 16;
  std::memcpy(&y, &bits, 4);
  return y;
}

inline void from_float(float x, float* y) { *y = x; }

inline void from_float(float x, BFloat16* y) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) y->bits = uint16_t(bits >> 16 | 0x40);
  else y->bits = uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

inline void from_float(float x, Float16* y) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) half = 0x7e00;
  else if (magnitude >= 0x477ff000u) half = 0x7c00;  // rounds to 65536 or more
  else if (magnitude >= 0x38800000u) half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
  else {
    // Subnormal: adding 0.5 lets the float unit round at 2^-24.
    float y;
    std::memcpy(&y, &magnitude, 4);
    y += 0.5f;
    std::memcpy(&half, &y, 4);
    half -= 0x3f000000u;
  }
  y->bits = uint16_t(half | sign);
}

#if defined(__AVX512F__)

inline Floats broadcast(float x) { return _mm512_set1_ps(x); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
// x where it is above `least` (NaN is not), else `least`; the other way round in at_most.
inline Floats at_least(Floats x, Floats least) { return _mm512_max_ps(x, least); }
inline Floats at_most(Floats x, Floats most) { return _mm512_min_ps(x, most); }
// Bit i: lane i of x is above (equal to) lane i of y.
inline uint32_t above(Floats x, Floats y) { return _mm512_cmp_ps_mask(x, y, _CMP_GT_OQ); }
inline uint32_t equal(Floats x, Floats y) { return _mm512_cmp_ps_mask(x, y, _CMP_EQ_OQ); }
inline float reduce_add(Floats x) { return _mm512_reduce_add_ps(x); }
inline float reduce_max(Floats x) { return _mm512_reduce_max_ps(x); }

inline __mmask16 first_lanes(int64_t n) { return __mmask16((1u << n) - 1); }

inline Floats widen(__m256i x, BFloat16) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
inline Floats widen(__m256i x, Float16) { return _mm512_cvtph_ps(x); }
inline __m256i narrow(Floats x, BFloat16) { return __m256i(_mm512_cvtneps_pbh(x)); }
inline __m256i narrow(Floats x, Float16) { return _mm512_cvtps_ph(x, 8); }

inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
template <class T>
inline Floats load(const T* p) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), T());
}
template <class T>
inline void store(T* p, Floats x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x, T()));
}

// One of two vectors that together hold 2 * kLanes elements, in an order that is cheap for the type.
inline Floats load_half(const BFloat16* p, int half) {
  const __m512i pairs = _mm512_loadu_si512(p);
  const __m512i upper = _mm512_set1_epi32(int(0xffff0000u));
  return _mm512_castsi512_ps(half ? _mm512_and_si512(pairs, upper) : _mm512_slli_epi32(pairs, 16));
}

// The first n < kLanes elements; the other lanes are `fill` and no memory past the end is touched.
inline Floats load_part(const float* p, int64_t n, float fill) {
  return _mm512_mask_loadu_ps(broadcast(fill), first_lanes(n), p);
}
inline void store_part(float* p, Floats x, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }
template <class T>
inline Floats load_part(const T* p, int64_t n, float fill) {
  const Floats x = widen(_mm256_maskz_loadu_epi16(first_lanes(n), p), T());
  return _mm512_mask_mov_ps(broadcast(fill), first_lanes(n), x);
}
template <class T>
inline void store_part(T* p, Floats x, int64_t n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), narrow(x, T()));
}

#else

#if defined(__AVX2__)

inline Floats broadcast(float x) { return _mm256_set1_ps(x); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats round(Floats x) { return _mm256_round_ps(x, 8); }
inline Floats at_least(Floats x, Floats least) { return _mm256_max_ps(x, least); }
inline Floats at_most(Floats x, Floats most) { return _mm256_min_ps(x, most); }
inline uint32_t above(Floats x, Floats y) { return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_GT_OQ))); }
inline uint32_t equal(Floats x, Floats y) { return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_EQ_OQ))); }

inline float reduce_add(Floats x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
inline float reduce_max(Floats x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

// n in [-126, 127]: callers clamp.
inline Floats scale_by_power(Floats x, Floats n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return x * _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}

inline Floats widen(__m128i x, BFloat16) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
inline Floats widen(__m128i x, Float16) { return _mm256_cvtph_ps(x); }
inline __m128i narrow(Floats x, BFloat16) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i nearest = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  const __m256i y = _mm256_srli_epi32(_mm256_blendv_epi8(nearest, quiet, _mm256_castps_si256(nan)), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
}
inline __m128i narrow(Floats x, Float16) { return _mm256_cvtps_ph(x, 8); }

inline Floats load_half(const BFloat16* p, int half) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i upper = _mm256_set1_epi32(int(0xffff0000u));
  return _mm256_castsi256_ps(half ? _mm256_and_si256(pairs, upper) : _mm256_slli_epi32(pairs, 16));
}

inline Floats load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
template <class T>
inline Floats load(const T* p) {
  return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), T());
}
template <class T>
inline void store(T* p, Floats x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(x, T()));
}

#else

inline Floats broadcast(float x) { return Floats{x, x, x, x}; }
inline Floats fma(Floats a, Floats b, Floats c) { return a * b + c; }
inline Floats round(Floats x) {
  // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer for |x| < 2^22.
  return (x + 12582912.0f) - 12582912.0f;
}
inline Floats at_least(Floats x, Floats least) { return x > least ? x : least; }
inline Floats at_most(Floats x, Floats most) { return x < most ? x : most; }
inline uint32_t bits_of(Ints mask) { return (mask[0] & 1) | (mask[1] & 2) | (mask[2] & 4) | (mask[3] & 8); }
inline uint32_t above(Floats x, Floats y) { return bits_of(x > y); }
inline uint32_t equal(Floats x, Floats y) { return bits_of(x == y); }
inline float reduce_add(Floats x) { return (x[0] + x[2]) + (x[1] + x[3]); }
inline float reduce_max(Floats x) {
  const float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
  return a > b ? a : b;
}
inline Floats scale_by_power(Floats x, Floats n) {
  return x * Floats((__builtin_convertvector(n, Ints) + 127) << 23);
}

inline Floats load(const float* p) {
  Floats x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline void store(float* p, Floats x) { std::memcpy(p, &x, sizeof x); }
inline Floats load(const BFloat16* p) {
  Halves x;
  std::memcpy(&x, p, sizeof x);
  return Floats(__builtin_convertvector(x, Ints) << 16);
}
inline Floats load(const Float16* p) { return Floats{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])}; }
template <class T>
inline void store(T* p, Floats x) {
  for (int i = 0; i < kLanes; ++i) from_float(x[i], p + i);
}

#endif

template <class T>
inline Floats load_part(const T* p, int64_t n, float fill) {
  float part[kLanes];
  for (int i = 0; i < kLanes; ++i) part[i] = i < n ? to_float(p[i]) : fill;
  return load(part);
}
template <class T>
inline void store_part(T* p, Floats x, int64_t n) {
  T part[kLanes];
  store(part, x);
  std::memcpy(static_cast<void*>(p), part, size_t(n) * sizeof(T));
}

#endif

template <class T>
inline Floats load_half(const T* p, int half) {
  return load(p + half * kLanes);
}

// Calls use(T()) with the element type that stands for dtype.
template <class Use>
inline void with_type(DType dtype, Use use) {
  switch (dtype) {
    case DType::float32: return use(float());
    case DType::bfloat16: return use(BFloat16());
    case DType::float16: return use(Float16());
  }
}

// 2^t for t in [-126, 127], relative error below 2e-7 and exact at integers: a power of two times a minimax
// polynomial. Where kExp2TakesAll, it is right for any t below as well, minus infinity included, and NaN for NaN.
#if defined(__AVX512F__)
constexpr bool kExp2TakesAll = true;
#else
constexpr bool kExp2TakesAll = false;
#endif
inline Floats exp2(Floats t) {
#if defined(__AVX512F__)
  const Floats r = _mm512_reduce_ps(t, 9);  // t - floor(t)
  Floats y = broadcast(0.00186713f);
  y = fma(y, r, broadcast(0.009017031f));
  y = fma(y, r, broadcast(0.055799913f));
  y = fma(y, r, broadcast(0.24016444f));
  y = fma(y, r, broadcast(0.6931513f));
  return _mm512_scalef_ps(fma(y, r, broadcast(1.0f)), t);  // scales by floor(t)
#else
  const Floats n = round(t), r = t - n;
  Floats y = broadcast(0.0013264727f);
  y = fma(y, r, broadcast(0.009671513f));
  y = fma(y, r, broadcast(0.055507336f));
  y = fma(y, r, broadcast(0.24022242f));
  y = fma(y, r, broadcast(0.693147f));
  return scale_by_power(fma(y, r, broadcast(1.0f)), n);
#endif
}

}  // namespace refusion::cpu::REFUSION_ISA
