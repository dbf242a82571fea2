#include <cmath>

#include "bindings/ops.h"

namespace refusion {
namespace {

const void* vector_of(Check& check, const Maybe& t, const char* name, const Tensor& x, int64_t expected,
                      const char* whose) {
  if (!t) return nullptr;
  check.rank(*t, name, {"entries"});
  check.same_dtype(*t, name, x, "x");
  check.axis(*t, name, 0, "entries", expected, whose);
  check.contiguous(*t, name);
  return t->data;
}

void matrix(Check& check, const Tensor& t, const char* name, const Tensor& x, int64_t rows, int64_t outputs) {
  check.rank(t, name, {"rows", "outputs"});
  check.same_dtype(t, name, x, "x");
  check.axis(t, name, 0, "rows", rows, "x");
  check.axis(t, name, 1, "outputs", outputs, "weight");
  check.last_axis_contiguous(t, name);
}

}  // namespace

void linear(const Tensor& x, const Tensor& weight, const Maybe& bias, const Maybe& norm, float norm_epsilon,
            bool gated, const Maybe& residual, const Tensor& out) {
  Check check("linear");
  Linear op{};
  check.rank(x, "x", {"rows", "width"});
  op.dtype = check.floating(x, "x");
  check.last_axis_contiguous(x, "x");
  check.rank(weight, "weight", {"outputs", "width"});
  check.same_dtype(weight, "weight", x, "x");
  if (gated && norm) bad_value("linear: norm and gated exclude each other");
  if (gated && x.shape[1] % 2 != 0) bad_value("linear: x is two halves if gated, its width is ", x.shape[1]);
  op.gated = gated;
  op.width = gated ? x.shape[1] / 2 : x.shape[1];
  check.axis(weight, "weight", 1, "width", op.width, gated ? "half of x" : "x");
  check.last_axis_contiguous(weight, "weight");
  op.x = x.data;
  op.weight = weight.data;
  op.rows = x.shape[0];
  op.outputs = weight.shape[0];
  op.x_stride = x.strides[0];
  op.weight_stride = weight.strides[0];
  op.bias = vector_of(check, bias, "bias", x, op.outputs, "weight");
  op.norm = vector_of(check, norm, "norm", x, op.width, "x");
  if (!(norm_epsilon >= 0) || std::isinf(norm_epsilon))
    bad_value("linear: norm_epsilon must be finite and not negative, got ", norm_epsilon);
  op.norm_epsilon = norm_epsilon;
  matrix(check, out, "out", x, op.rows, op.outputs);
  check.contiguous(out, "out");
  check.written(out, "out");
  check.apart(out, "out", x, "x");
  check.apart(out, "out", weight, "weight");
  if (bias) check.apart(out, "out", *bias, "bias");
  if (norm) check.apart(out, "out", *norm, "norm");
  if (residual) {
    matrix(check, *residual, "residual", x, op.rows, op.outputs);
    op.residual = residual->data;
    op.residual_stride = residual->strides[0];
    // Each element is read before it is written, so that the very same array does no harm.
    if (residual->data != out.data || op.residual_stride != op.outputs) check.apart(out, "out", *residual, "residual");
  }
  op.out = out.data;
  run(check, op);
}

}  // namespace refusion
