// The shared library's one exported function, and the few calls of the CUDA runtime behind it.
#include <utility>

#include "cuda/launchers.h"
#include "cuda/portable.cuh"

namespace refusion::cuda {
namespace {

// budget: registers 16, shared 0
__global__ void probe() {}

int make_current(int device, int* previous) {
  if (const cudaError_t error = cudaGetDevice(previous)) return error;
  return *previous == device ? cudaSuccess : cudaSetDevice(device);
}

int describe(int device, Device* out) {
  cudaFuncAttributes attributes;
  for (const auto& [value, attribute] : {std::pair{&out->multiprocessors, cudaDevAttrMultiProcessorCount},
                                         {&out->major, cudaDevAttrComputeCapabilityMajor},
                                         {&out->minor, cudaDevAttrComputeCapabilityMinor}})
    if (const cudaError_t error = cudaDeviceGetAttribute(value, attribute, device)) return error;
  return cudaFuncGetAttributes(&attributes, probe);  // loads this library's code for the device
}

const char* error_name(int error) { return cudaGetErrorName(cudaError_t(error)); }
const char* error_text(int error) { return cudaGetErrorString(cudaError_t(error)); }

}  // namespace
}  // namespace refusion::cuda

extern "C" __attribute__((visibility("default"))) const refusion::cuda::Library* refusion_cuda_library() {
  using namespace refusion::cuda;
  static const Library library{&kernels(), CUDART_VERSION, make_current, describe, error_name, error_text};
  return &library;
}
