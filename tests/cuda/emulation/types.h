// Vector types, bfloat16, half, and the conversions and bit intrinsics that kernels use.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct uint3 {
  unsigned x, y, z;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct alignas(2) __nv_bfloat16 {
  uint16_t bits;
};
struct alignas(2) __half {
  uint16_t bits;
};

namespace emulation {

template <class To, class From>
To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace emulation

inline float __bfloat162float(__nv_bfloat16 value) { return emulation::bit_cast<float>(uint32_t(value.bits) << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const uint32_t bits = emulation::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16)};
}
inline float __half2float(__half value) { return float(emulation::bit_cast<_Float16>(value.bits)); }
inline __half __float2half_rn(float value) { return {emulation::bit_cast<uint16_t>(_Float16(value))}; }

inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline unsigned __float_as_uint(float x) { return emulation::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return emulation::bit_cast<float>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
  return unsigned((uint64_t(high) << 32 | low) >> (bits & 31));
}
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
