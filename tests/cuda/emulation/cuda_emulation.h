// Runs CUDA C++ kernels on the CPU, for tests: one fiber per CUDA thread, one block at a time, one OS thread.
//   g++ -std=c++17 -x c++ -include cuda_emulation.h kernel.cu   (linked with the .cpp files of this folder)
// What it checks and what it cannot show: docs/testing-cuda.md.
#pragma once
#ifdef __CUDACC__
#error "the emulation is not for nvcc"
#endif
#define REFUSION_CUDA_EMULATION 1

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

#include "intrinsics.h"
#include "runtime.h"
#include "types.h"
