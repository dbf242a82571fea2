// linear: residual + norm(x) @ weight^T + bias, for the few rows of a decoding step.
#pragma once
#include <cstdint>

#include "refusion/dtype.h"

namespace refusion {

struct Linear {
  const void* x;       // [rows, width]
  const void* weight;  // [outputs, width]
  DType dtype;
  int64_t rows, outputs, width;
  int64_t x_stride, weight_stride;  // elements between rows
  const void* bias;                 // [outputs] or null
  const void* norm;                 // RMS norm weight [width] or null: x as it is
  float norm_epsilon;
  const void* residual;  // [rows, outputs] or null; may be `out`
  int64_t residual_stride;
  void* out;  // [rows, outputs], contiguous
};

}  // namespace refusion
