// The only header that kernels include for CUDA itself. With nvcc: the real thing, and all PTX of this project. With a
// host compiler and tests/cuda/emulation in front: twins of the same names, so that tests run the very same kernels.
// Rules for kernels: docs/testing-cuda.md.
#pragma once
#ifndef REFUSION_CUDA_EMULATION
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

// Static shared memory: SHARED_ARRAY(float, sums, [4]); dynamic: SMEM_CARVER(shared); float* x = shared.take<float>(n);
#define SHARED_ARRAY(T, name, ...) __shared__ __align__(16) T name __VA_ARGS__

struct SmemCarver {
  unsigned char* base;
  size_t offset;
  template <class T>
  __device__ __forceinline__ T* take(size_t count) {
    offset = (offset + 15) / 16 * 16;
    T* array = reinterpret_cast<T*>(base + offset);
    offset += count * sizeof(T);
    return array;
  }
};
#define SMEM_CARVER(name)                                                   \
  extern __shared__ __align__(128) unsigned char refusion_dynamic_shared[]; \
  SmemCarver name{refusion_dynamic_shared, 0}

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// d += a * b, 16 x 8 x 16, float32 sums; fragments as in the PTX ISA, "Matrix fragments for mma.m16n8k16".
#define REFUSION_MMA(T, name)                                                                                      \
  __device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], T) { \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name                                            \
                 ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                      \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                              \
  }
REFUSION_MMA(__nv_bfloat16, "bf16")
REFUSION_MMA(__half, "f16")
#undef REFUSION_MMA

// Four 8 x 8 matrices of 16-bit elements; lane 8 * q + r points at row r of matrix q, aligned to 16 bytes.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// 16 bytes from global to shared memory, or zeros where not valid; finished after commit and wait.
__device__ __forceinline__ void cp_async_16(void* to, const void* from, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Groups>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Groups) : "memory");
}

// 2^x within two units in the last place, in one instruction; results below the smallest normal number are 0.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Returns a cudaError_t. Dynamic shared memory beyond 48 KiB has to be asked for.
template <class... Parameters, class... Arguments>
inline int launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, void* stream,
                  Arguments&&... arguments) {
  if (shared_bytes > (48u << 10)) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  kernel<<<grid, block, shared_bytes, static_cast<cudaStream_t>(stream)>>>(static_cast<Parameters>(arguments)...);
  return cudaGetLastError();
}
#endif

namespace refusion::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kLog2e = 1.4426950408889634f;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
  return __float2half_rn(x);
}

// Elements of T in 16 bytes, and those bytes as elements.
template <class T>
constexpr int kVector = 16 / int(sizeof(T));

template <class T>
union Vector {
  uint4 bits;
  T element[kVector<T>];
  __device__ Vector() : bits(make_uint4(0, 0, 0, 0)) {}
  __device__ explicit Vector(const uint4& b) : bits(b) {}
};

// Two elements in one register, the first in the lower half.
template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  union {
    T element[2];
    uint32_t bits;
  } pair;
  pair.element[0] = from_float<T>(low);
  pair.element[1] = from_float<T>(high);
  return pair.bits;
}

// 16 rows times the four matrices of an ldmatrix_x4: the first two into `left`, the others into `right`.
template <class T>
__device__ __forceinline__ void multiply_pair(float (&left)[4], float (&right)[4], const uint32_t (&rows)[4],
                                              const uint32_t (&matrices)[4]) {
  const uint32_t first[2] = {matrices[0], matrices[1]}, second[2] = {matrices[2], matrices[3]};
  mma_m16n8k16(left, rows, first, T());
  mma_m16n8k16(right, rows, second, T());
}

__device__ __forceinline__ int lane_id() { return int(threadIdx.x) & 31; }
__device__ __forceinline__ int warp_id() { return int(threadIdx.x) >> 5; }

template <class T>
__host__ __device__ constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

}  // namespace refusion::cuda
