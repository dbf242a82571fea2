// Counter-based random numbers (Philox4x32-10, Salmon et al., SC'11), the same on CPU and GPU, for Gumbel-max sampling.
#pragma once
#include <cstdint>

#if defined(__CUDACC__) || defined(REFUSION_CUDA_EMULATION)
#define REFUSION_HOST_DEVICE __host__ __device__
#else
#define REFUSION_HOST_DEVICE
#endif

namespace refusion {

struct Philox {
  uint32_t word[4];
};

// Four words for vocabulary ids 4 * block .. 4 * block + 3 of a row with sample key {seed, sequence, position, round}.
REFUSION_HOST_DEVICE inline Philox philox(const int64_t* key, uint32_t block) {
  uint32_t c0 = block, c1 = uint32_t(key[2]), c2 = uint32_t(key[3]), c3 = uint32_t(key[1]);
  uint32_t k0 = uint32_t(uint64_t(key[0])), k1 = uint32_t(uint64_t(key[0]) >> 32);
  for (int turn = 0; turn < 10; ++turn) {
    const uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
    const uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ k0, n2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c1 = uint32_t(p1);
    c3 = uint32_t(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Uniform in (0, 1): 23 bits and a half, so that neither 0 nor 1 can come out in float32.
REFUSION_HOST_DEVICE inline float uniform(uint32_t word) { return (float(word >> 9) + 0.5f) * 1.1920928955078125e-7f; }

}  // namespace refusion
