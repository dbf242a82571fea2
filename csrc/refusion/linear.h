// linear: residual + f(x) @ weight^T + bias, for the few rows of a decoding step; f: an RMS norm, a SwiGLU or nothing.
#pragma once
#include <cstdint>

#include "refusion/dtype.h"

namespace refusion {

struct Linear {
  const void* x;       // [rows, width], or [rows, 2 * width] if gated
  const void* weight;  // [outputs, width]
  DType dtype;
  int64_t rows, outputs, width;
  int64_t x_stride, weight_stride;  // elements between rows
  const void* bias;                 // [outputs] or null
  const void* norm;                 // RMS norm weight [width] or null: x as it is
  float norm_epsilon;
  bool gated;            // silu(first half of x) * second half, without norm
  const void* residual;  // [rows, outputs] or null; may be `out`
  int64_t residual_stride;
  void* out;  // [rows, outputs], contiguous
};

}  // namespace refusion
