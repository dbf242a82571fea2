// A view of an array of any framework that speaks DLPack, valid for the length of one call.
#pragma once
#include <pybind11/pybind11.h>

#include <optional>
#include <string>

#include "bindings/dlpack.h"
#include "refusion/dtype.h"

namespace refusion {

constexpr int kMaxRank = 6;  // axes of a longer shape are not looked at: no op takes them

class Tensor {
 public:
  Tensor() = default;
  ~Tensor();
  Tensor(Tensor&&) noexcept;
  Tensor& operator=(Tensor&&) = delete;

  // Takes a view of `object`. What makes it unusable is kept in `problem`: only the op knows the argument's name.
  void load(pybind11::handle object);

  char* data = nullptr;
  dlpack::Device device{dlpack::cpu, 0};
  dlpack::DataType dtype{};
  int rank = 0;
  int64_t shape[kMaxRank];
  int64_t strides[kMaxRank];              // elements
  const char* read_only = nullptr;        // why it cannot be written
  const dlpack::ExchangeApi* api = nullptr;  // of its framework; null where it has none
  pybind11::handle source;                // borrowed: alive for the length of the call
  bool torch = false;                     // a torch tensor, with or without the exchange API
  std::string problem;                    // continues "attend: q "; empty: usable

  bool is(uint8_t code, uint8_t bits) const { return dtype.code == code && dtype.bits == bits && dtype.lanes == 1; }
  int64_t element_size() const { return (dtype.bits * dtype.lanes + 7) / 8; }
  bool empty() const;
  std::string dtype_name() const;
  std::string device_name() const;
  std::string shape_text() const;

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }

 private:
  void take(const dlpack::DLTensor& tensor);
  bool load_buffer(pybind11::handle object);
  void load_capsule(pybind11::handle object, bool torch);

  // Content of a capsule that is ours to delete; at most one is set.
  dlpack::Managed* managed_ = nullptr;
  dlpack::ManagedVersioned* versioned_ = nullptr;
};

using Maybe = std::optional<Tensor>;

}  // namespace refusion

namespace pybind11::detail {

template <>
struct type_caster<refusion::Tensor> {
  PYBIND11_TYPE_CASTER(refusion::Tensor, const_name("Any"));
  bool load(handle source, bool) {
    value.load(source);
    return true;
  }
};

template <>
struct type_caster<refusion::Maybe> {
  PYBIND11_TYPE_CASTER(refusion::Maybe, const_name("Any | None"));
  bool load(handle source, bool) {
    if (!source.is_none()) value.emplace().load(source);
    return true;
  }
};

}  // namespace pybind11::detail
