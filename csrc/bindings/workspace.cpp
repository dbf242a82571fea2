#include "bindings/workspace.h"

namespace py = pybind11;

namespace refusion {
namespace {

constexpr uintptr_t kAlignment = 256;

[[noreturn]] void no_memory(const Check& call, int64_t bytes, const std::string& reason) {
  throw std::runtime_error(std::string(call.op) + ": no workspace of " + std::to_string(bytes) + " bytes on " +
                           call.first->device_name() + ": " + reason);
}

}  // namespace

Workspace::Workspace(const Check& call, size_t bytes) {
  if (bytes == 0) return;
  const int64_t padded = int64_t(bytes + kAlignment - 1);
  if (call.first->api != nullptr && call.first->api->allocate != nullptr) take_from_exchange(call, padded);
  else take_from_python(call, padded);
  data_ = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(data_) + kAlignment - 1) / kAlignment * kAlignment);
}

Workspace::~Workspace() {
  if (managed_ && managed_->deleter) managed_->deleter(managed_);
}

void Workspace::take_from_exchange(const Check& call, int64_t bytes) {
  std::string reason;
  dlpack::DLTensor prototype{nullptr, call.device, 1, {dlpack::code_uint, 8, 1}, &bytes, nullptr, 0};
  const auto keep = [](void* text, const char*, const char* message) { *static_cast<std::string*>(text) = message; };
  if (call.first->api->allocate(&prototype, &managed_, &reason, keep) != 0) {
    PyErr_Clear();
    no_memory(call, bytes, reason);
  }
  data_ = static_cast<char*>(managed_->tensor.data) + managed_->tensor.byte_offset;
}

void Workspace::take_from_python(const Check& call, int64_t bytes) {
  array_ = py::module_::import("refusion_ext.arrays").attr("empty")(py::make_tuple(bytes), "uint8", call.first->source);
  Tensor view;
  view.load(array_);
  if (!view.problem.empty()) no_memory(call, bytes, view.problem);
  if (view.device.type != call.device.type || view.device.id != call.device.id)
    no_memory(call, bytes, "the framework of the arrays gave memory on " + view.device_name());
  data_ = view.data;
}

}  // namespace refusion
