// The CUDA device that the arrays of a call lie on. The tests have a twin of backend.cpp that takes CPU arrays to the
// same kernels, run by the emulation.
#pragma once
#include <stdexcept>
#include <string>

#include "bindings/check.h"
#include "cuda/launchers.h"

namespace refusion {

// The arrays lie on a CUDA device, but its kernels cannot run; says why and what to do.
struct CudaUnavailable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct CudaBuild {
  bool built;
  const char *reason, *toolkit, *code;  // why not built; version of nvcc; architectures
};
CudaBuild cuda_build();

bool has_cuda_kernels(const dlpack::Device& device);

// Makes the device current while it lives.
class CudaDevice {
 public:
  explicit CudaDevice(const Check& call);  // throws CudaUnavailable
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;

  const cuda::Kernels& kernels() const;
  int multiprocessors() const;
  void* stream() const;                     // the framework's current one
  std::string describe(int error) const;  // a cudaError_t

 private:
  const Check& call_;
  int previous_ = -1;
};

}  // namespace refusion
