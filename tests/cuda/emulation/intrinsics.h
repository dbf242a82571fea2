// Emulated twins of CUDA's built-in variables, barriers, warp operations, atomics and of the PTX in portable.cuh.
#pragma once
#include "runtime.h"

#define threadIdx (emulation::current->index)
#define blockIdx (emulation::block_index)
#define blockDim (emulation::block_size)
#define gridDim (emulation::grid_size)
#define EMULATION_SITE emulation::Site site = {__builtin_FILE(), __builtin_LINE()}

// Shared memory: every array is a heap block of exactly its size, new and filled with 0xff (NaN) in every block.
#define SHARED_ARRAY(T, name, ...)   \
  using name##_type = T __VA_ARGS__; \
  static char name##_key;            \
  name##_type& name = *static_cast<name##_type*>(emulation::shared_array(&name##_key, sizeof(name##_type)))

struct SmemCarver {
  size_t offset = 0;
  template <class T>
  T* take(size_t count) {
    offset = (offset + 15) / 16 * 16;
    T* array = static_cast<T*>(emulation::carve(offset, count * sizeof(T)));
    offset += count * sizeof(T);
    return array;
  }
};
#define SMEM_CARVER(name) SmemCarver name

inline void __syncthreads(EMULATION_SITE) { emulation::sync_threads(0, 0, site); }
inline int __syncthreads_count(int p, EMULATION_SITE) { return emulation::sync_threads(p, 1, site); }
inline int __syncthreads_and(int p, EMULATION_SITE) { return emulation::sync_threads(p, 2, site); }
inline int __syncthreads_or(int p, EMULATION_SITE) { return emulation::sync_threads(p, 3, site); }
inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATION_SITE) {
  emulation::warp_op(emulation::Op::sync_warp, mask, 0, 0, 32, nullptr, nullptr, site);
}
inline void __threadfence() { emulation::fence(); }

namespace emulation {

template <class T>
uint64_t pack(T value) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

template <class T>
T shuffle(Op op, unsigned mask, T value, int argument, int width, Site site) {
  const uint64_t bits = warp_op(op, mask, pack(value), argument, width, nullptr, nullptr, site);
  T result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

inline uint64_t vote(Op op, unsigned mask, uint64_t value, bool is_signed, Site site) {
  return warp_op(op, mask, value, is_signed, 32, nullptr, nullptr, site);
}

// Relaxed: an atomic orders no other memory. `change` takes its operands by value, so that nothing in between is an
// access at which another thread could go on: the race build notes one access, the address sanitizer checks both.
template <class T, class Change>
__attribute__((noinline, no_sanitize("thread"))) T atomic(T* address, T value, Change change) {
  note_access(address, sizeof(T), true, true);
  const T old = *static_cast<volatile T*>(address);
  *static_cast<volatile T*>(address) = change(old, value);
  return old;
}

template <class T>
using Plain = std::common_type_t<T>;  // not deduced

}  // namespace emulation

template <class T>
T __shfl_sync(unsigned m, T v, int lane, int width = 32, EMULATION_SITE) {
  return emulation::shuffle(emulation::Op::shuffle, m, v, lane, width, site);
}
template <class T>
T __shfl_up_sync(unsigned m, T v, unsigned delta, int width = 32, EMULATION_SITE) {
  return emulation::shuffle(emulation::Op::shuffle_up, m, v, int(delta), width, site);
}
template <class T>
T __shfl_down_sync(unsigned m, T v, unsigned delta, int width = 32, EMULATION_SITE) {
  return emulation::shuffle(emulation::Op::shuffle_down, m, v, int(delta), width, site);
}
template <class T>
T __shfl_xor_sync(unsigned m, T v, int lanes, int width = 32, EMULATION_SITE) {
  return emulation::shuffle(emulation::Op::shuffle_xor, m, v, lanes, width, site);
}
inline unsigned __ballot_sync(unsigned m, int p, EMULATION_SITE) {
  return unsigned(emulation::vote(emulation::Op::ballot, m, p != 0, false, site));
}
inline int __any_sync(unsigned m, int p, EMULATION_SITE) {
  return int(emulation::vote(emulation::Op::any, m, p != 0, false, site));
}
inline int __all_sync(unsigned m, int p, EMULATION_SITE) {
  return int(emulation::vote(emulation::Op::all, m, p != 0, false, site));
}
template <class T>
unsigned __match_any_sync(unsigned m, T v, EMULATION_SITE) {
  return unsigned(emulation::vote(emulation::Op::match_any, m, emulation::pack(v), false, site));
}
inline int __reduce_add_sync(unsigned m, int v, EMULATION_SITE) {
  return int(emulation::vote(emulation::Op::add, m, uint64_t(int64_t(v)), true, site));
}
inline int __reduce_max_sync(unsigned m, int v, EMULATION_SITE) {
  return int(emulation::vote(emulation::Op::maximum, m, uint64_t(int64_t(v)), true, site));
}
inline unsigned __reduce_min_sync(unsigned m, unsigned v, EMULATION_SITE) {
  return unsigned(emulation::vote(emulation::Op::minimum, m, v, false, site));
}

#define EMULATION_ATOMIC(name, result)                                           \
  template <class T>                                                             \
  T name(T* p, emulation::Plain<T> v) {                                          \
    return emulation::atomic<T>(p, v, [](T old, T value) { return T(result); }); \
  }
EMULATION_ATOMIC(atomicAdd, old + value)
EMULATION_ATOMIC(atomicMax, old < value ? value : old)
EMULATION_ATOMIC(atomicMin, value < old ? value : old)
EMULATION_ATOMIC(atomicOr, old | value)
EMULATION_ATOMIC(atomicExch, (void(old), value))
#undef EMULATION_ATOMIC

// The twins of portable.cuh's PTX.
inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], __nv_bfloat16, EMULATION_SITE) {
  const emulation::Mma in{a, b, d};
  float out[4];
  emulation::warp_op(emulation::Op::mma_bfloat16, 0xffffffffu, 0, 0, 32, &in, out, site);
  std::memcpy(d, out, sizeof out);
}
inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], __half, EMULATION_SITE) {
  const emulation::Mma in{a, b, d};
  float out[4];
  emulation::warp_op(emulation::Op::mma_half, 0xffffffffu, 0, 0, 32, &in, out, site);
  std::memcpy(d, out, sizeof out);
}
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, EMULATION_SITE) {
  emulation::warp_op(emulation::Op::load_matrix, 0xffffffffu, 0, 0, 32, row, r, site);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, EMULATION_SITE) {
  emulation::warp_op(emulation::Op::load_matrix, 0xffffffffu, 0, 1, 32, row, r, site);
}
inline void cp_async_16(void* to, const void* from, bool valid = true) {
  emulation::copy_async(to, from, 16, valid ? 16 : 0);
}
inline void cp_async_commit() { emulation::copy_async_commit(); }
template <int Groups>
void cp_async_wait() {
  emulation::copy_async_wait(Groups);
}

inline float exp2_approximate(float x) {
  const float y = exp2f(x);
  return y < 1.17549435e-38f ? 0.0f : y;
}

// The part of the host API that launchers use.
using cudaStream_t = void*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0;

template <class... Parameters, class... Arguments>
int launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, void*, Arguments&&... arguments) {
  auto body = [&] { kernel(static_cast<Parameters>(arguments)...); };
  emulation::launch_blocks(grid, block, shared_bytes, [](void* c) { (*static_cast<decltype(body)*>(c))(); }, &body);
  return cudaSuccess;
}
