// Argument checks. Every message names the op, the argument, what was expected and what came.
#pragma once
#include <initializer_list>
#include <sstream>

#include "bindings/tensor.h"

namespace refusion {

template <class... Parts>
[[noreturn]] void bad_value(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw pybind11::value_error(text.str());
}

template <class... Parts>
[[noreturn]] void bad_type(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw pybind11::type_error(text.str());
}

// The arguments of one call. `rank` (or `vector`, which includes it) comes first for each of them.
class Check {
 public:
  explicit Check(const char* op) : op(op) {}

  // Usable at all, on the device of the first argument, and with these axes.
  void rank(const Tensor& t, const char* name, std::initializer_list<const char*> axes);
  void axis(const Tensor& t, const char* name, int axis, const char* axis_name, int64_t expected,
            const char* whose) const;

  DType floating(const Tensor& t, const char* name) const;  // float32, bfloat16 or float16
  template <class T>
  void dtype(const Tensor& t, const char* name) const;  // float, int32_t or int64_t
  void same_dtype(const Tensor& t, const char* name, const Tensor& other, const char* other_name) const;

  void contiguous(const Tensor& t, const char* name) const;
  void last_axis_contiguous(const Tensor& t, const char* name) const;
  // May be written: not read-only, every element in memory of its own.
  void written(const Tensor& t, const char* name) const;
  // No byte in common, judged by the range from first to last element.
  void apart(const Tensor& out, const char* name, const Tensor& other, const char* other_name) const;

  // Contiguous 1-D array of `expected` entries, which is the number of `whose`.
  template <class T>
  T* vector(const Tensor& t, const char* name, int64_t expected, const char* whose);
  template <class T>
  T* vector(const Tensor& t, const char* name);
  // The same, to be written.
  template <class T>
  T* result(const Tensor& t, const char* name, int64_t expected, const char* whose);
  // [count + 1] bounds of ragged ranges over `total` elements.
  const int32_t* offsets(const Tensor& t, const char* name, int64_t total, const char* whose);

  // Values can be read and are checked too; elsewhere that would wait for the device.
  bool on_cpu() const { return device.type == dlpack::cpu; }

  const char* const op;
  dlpack::Device device{dlpack::cpu, 0};
  const Tensor* first = nullptr;

 private:
  const char* first_name_ = "";
};

}  // namespace refusion
