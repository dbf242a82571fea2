// Device memory of a launch, from the allocator of the framework that owns the arrays. Given back when the launch is
// queued: such allocators hand memory out again in the order of their current stream, which is where the launch went.
#pragma once
#include "bindings/check.h"

namespace refusion {

class Workspace {
 public:
  Workspace(const Check& call, size_t bytes);  // 0 bytes: none
  ~Workspace();
  Workspace(const Workspace&) = delete;

  void* data() const { return data_; }  // aligned to 256 bytes; null where there is none

 private:
  void take_from_exchange(const Check& call, int64_t bytes);
  void take_from_python(const Check& call, int64_t bytes);

  void* data_ = nullptr;
  dlpack::ManagedVersioned* managed_ = nullptr;
  pybind11::object array_;
};

}  // namespace refusion
