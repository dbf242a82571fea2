#include "bindings/check.h"

#include <cstdlib>

namespace refusion {
namespace {

struct Span {
  const char *begin, *end;  // bytes from the first to behind the last element
};

Span span_of(const Tensor& t) {
  if (t.empty()) return {t.data, t.data};
  int64_t low = 0, high = 1;
  for (int i = 0; i < t.rank; ++i) {
    const int64_t reach = (t.shape[i] - 1) * t.strides[i];
    (reach < 0 ? low : high) += reach;
  }
  return {t.data + low * t.element_size(), t.data + high * t.element_size()};
}

// Whether strides nest: each steps over all that the smaller ones reach. True of every view that slicing, transposing
// and unfolding axes can make of an array.
bool elements_are_distinct(const Tensor& t) {
  int order[kMaxRank], axes = 0;  // by stride, ascending
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] < 2) continue;
    int place = axes++;
    for (; place > 0 && std::abs(t.strides[order[place - 1]]) > std::abs(t.strides[i]); --place)
      order[place] = order[place - 1];
    order[place] = i;
  }
  int64_t reach = 1;
  for (int i = 0; i < axes; ++i) {
    const int64_t stride = std::abs(t.strides[order[i]]);
    if (stride < reach) return false;
    reach += (t.shape[order[i]] - 1) * stride;
  }
  return true;
}

template <class T>
constexpr std::pair<int, const char*> kCode = {dlpack::code_int, "int"};
template <>
constexpr std::pair<int, const char*> kCode<float> = {dlpack::code_float, "float"};

}  // namespace

void Check::rank(const Tensor& t, const char* name, std::initializer_list<const char*> axes) {
  if (!t.problem.empty()) bad_type(op, ": ", name, " ", t.problem);
  if (first == nullptr) {
    first = &t;
    first_name_ = name;
    device = t.device;
  } else if (t.device.type != device.type || t.device.id != device.id) {
    bad_value(op, ": ", name, " is on ", t.device_name(), ", ", first_name_, " is on ", first->device_name());
  }
  if (t.rank != int(axes.size())) {
    std::ostringstream expected;
    for (const char* axis : axes) expected << (axis == *axes.begin() ? "" : ", ") << axis;
    bad_value(op, ": ", name, " must have ", axes.size(), " dimensions [", expected.str(), "], got ", t.rank, ": ",
              t.shape_text());
  }
  if (reinterpret_cast<uintptr_t>(t.data) % size_t(t.element_size()) != 0)
    bad_value(op, ": ", name, " must be aligned to its elements of ", t.element_size(), " bytes, got address ",
              static_cast<const void*>(t.data));
}

void Check::axis(const Tensor& t, const char* name, int axis, const char* axis_name, int64_t expected,
                 const char* whose) const {
  if (t.shape[axis] != expected)
    bad_value(op, ": ", name, " has ", axis_name, " ", t.shape[axis], ", ", whose, " has ", expected);
}

DType Check::floating(const Tensor& t, const char* name) const {
  if (t.is(dlpack::code_float, 32)) return DType::float32;
  if (t.is(dlpack::code_bfloat, 16)) return DType::bfloat16;
  if (t.is(dlpack::code_float, 16)) return DType::float16;
  bad_type(op, ": ", name, " must be float32, bfloat16 or float16, got ", t.dtype_name());
}

template <class T>
void Check::dtype(const Tensor& t, const char* name) const {
  constexpr auto code = kCode<T>;
  if (!t.is(uint8_t(code.first), 8 * sizeof(T)))
    bad_type(op, ": ", name, " must be ", code.second, 8 * sizeof(T), ", got ", t.dtype_name());
}

void Check::same_dtype(const Tensor& t, const char* name, const Tensor& other, const char* other_name) const {
  if (!t.is(other.dtype.code, other.dtype.bits))
    bad_type(op, ": ", name, " must be ", other.dtype_name(), " like ", other_name, ", got ", t.dtype_name());
}

void Check::contiguous(const Tensor& t, const char* name) const {
  if (t.empty()) return;
  for (int64_t i = t.rank - 1, step = 1; i >= 0; step *= t.shape[i--])
    if (t.shape[i] > 1 && t.strides[i] != step)
      bad_value(op, ": ", name, " must be contiguous, got stride ", t.strides[i], " for ", step, " in dimension ", i);
}

void Check::last_axis_contiguous(const Tensor& t, const char* name) const {
  if (!t.empty() && t.shape[t.rank - 1] > 1 && t.strides[t.rank - 1] != 1)
    bad_value(op, ": ", name, " must be contiguous in its last dimension, got stride ", t.strides[t.rank - 1]);
}

void Check::written(const Tensor& t, const char* name) const {
  if (t.read_only) bad_type(op, ": ", name, " is written in place, but ", t.read_only);
  if (!t.empty() && !elements_are_distinct(t))
    bad_value(op, ": ", name, " is written in place, but its elements share memory");
}

void Check::apart(const Tensor& out, const char* name, const Tensor& other, const char* other_name) const {
  const Span a = span_of(out), b = span_of(other);
  if (a.begin < b.end && b.begin < a.end) bad_value(op, ": ", name, " overlaps ", other_name, " in memory");
}

template <class T>
T* Check::vector(const Tensor& t, const char* name) {
  rank(t, name, {"entries"});
  dtype<T>(t, name);
  contiguous(t, name);
  return t.as<T>();
}

template <class T>
T* Check::vector(const Tensor& t, const char* name, int64_t expected, const char* whose) {
  T* const values = vector<T>(t, name);
  if (t.shape[0] != expected)
    bad_value(op, ": ", name, " has ", t.shape[0], " entries, expected one for each of the ", expected, " ", whose);
  return values;
}

template <class T>
T* Check::result(const Tensor& t, const char* name, int64_t expected, const char* whose) {
  T* const values = vector<T>(t, name, expected, whose);
  written(t, name);
  return values;
}

const int32_t* Check::offsets(const Tensor& t, const char* name, int64_t total, const char* whose) {
  const int32_t* const values = vector<int32_t>(t, name);
  const int64_t last = t.shape[0] - 1;
  if (last < 0) bad_value(op, ": ", name, " must have at least one entry, got none");
  if (!on_cpu()) return values;
  if (values[0] != 0) bad_value(op, ": ", name, " must start at 0, got ", values[0]);
  for (int64_t i = 1; i <= last; ++i)
    if (values[i] < values[i - 1])
      bad_value(op, ": ", name, " must not decrease, got ", values[i - 1], " then ", values[i], " at entry ", i);
  if (values[last] != total)
    bad_value(op, ": ", name, " must end at ", total, ", the number of ", whose, ", got ", values[last]);
  return values;
}

template void Check::dtype<float>(const Tensor&, const char*) const;
template void Check::dtype<int64_t>(const Tensor&, const char*) const;
template void Check::dtype<int32_t>(const Tensor&, const char*) const;
template float* Check::vector<float>(const Tensor&, const char*);
template int64_t* Check::vector<int64_t>(const Tensor&, const char*);
template int32_t* Check::vector<int32_t>(const Tensor&, const char*);
template int64_t* Check::vector<int64_t>(const Tensor&, const char*, int64_t, const char*);
template int32_t* Check::vector<int32_t>(const Tensor&, const char*, int64_t, const char*);
template float* Check::vector<float>(const Tensor&, const char*, int64_t, const char*);
template float* Check::result<float>(const Tensor&, const char*, int64_t, const char*);
template int64_t* Check::result<int64_t>(const Tensor&, const char*, int64_t, const char*);
template int32_t* Check::result<int32_t>(const Tensor&, const char*, int64_t, const char*);

}  // namespace refusion
