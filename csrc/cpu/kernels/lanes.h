// Vectors at the end of an array, and what rows need of them.
#pragma once
#include <cmath>

#include "cpu/simd.h"

namespace refusion::cpu::REFUSION_ISA {

// Lanes of the vector that starts at i.
inline int64_t lanes_at(int64_t i, int64_t count) { return count - i < kLanes ? count - i : kLanes; }

template <class T>
inline Floats load_lanes(const T* p, int64_t lanes) {
  return lanes == kLanes ? load(p) : load_part(p, lanes, 0.0f);
}

template <class T>
inline void store_lanes(T* p, Floats x, int64_t lanes) {
  if (lanes == kLanes) store(p, x);
  else store_part(p, x, lanes);
}

template <class T>
inline float inverse_root_mean_square(const T* x, int64_t count, float epsilon) {
  Floats squares = broadcast(0.0f);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats v = load_lanes(x + i, lanes_at(i, count));
    squares = fma(v, v, squares);
  }
  return 1 / std::sqrt(reduce_add(squares) / float(count) + epsilon);
}

}  // namespace refusion::cpu::REFUSION_ISA
