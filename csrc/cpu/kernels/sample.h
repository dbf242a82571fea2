// Gumbel-max sampling of one block of logits. Noise costs far more than a comparison, so each element is first held
// against an upper bound of what its noise can be; only elements that may become the new maximum pay for logarithms.
#pragma once
#include <cmath>

#include "cpu/simd.h"
#include "refusion/philox.h"

namespace refusion::cpu::REFUSION_ISA {

// The words of ids 4 * block .. 4 * block + 4 * kLanes, in the order of the ids.
inline void noise_words(const int64_t* key, uint32_t block, uint32_t* words) {
#if defined(__AVX512F__)
  const __m512i a = _mm512_set1_epi32(int(0xD2511F53u)), b = _mm512_set1_epi32(int(0xCD9E8D57u));
  // Counters are dealt to the lanes so that interleaving within 128-bit parts leaves the words in order.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  auto multiply = [](__m512i m, __m512i c, __m512i* low) {
    const __m512i even = _mm512_mul_epu32(m, c), odd = _mm512_mul_epu32(m, _mm512_srli_epi64(c, 32));
    *low = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    return _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
  };
  __m512i c0 = _mm512_add_epi32(_mm512_set1_epi32(int(block)), order), c1 = _mm512_set1_epi32(int(uint32_t(key[2])));
  __m512i c2 = _mm512_set1_epi32(int(uint32_t(key[3]))), c3 = _mm512_set1_epi32(int(uint32_t(key[1])));
  uint32_t k0 = uint32_t(uint64_t(key[0])), k1 = uint32_t(uint64_t(key[0]) >> 32);
  for (int turn = 0; turn < 10; ++turn, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    __m512i low_a, low_b;
    const __m512i high_a = multiply(a, c0, &low_a), high_b = multiply(b, c2, &low_b);
    c0 = _mm512_ternarylogic_epi32(high_b, c1, _mm512_set1_epi32(int(k0)), 0x96);  // three-way exclusive or
    c2 = _mm512_ternarylogic_epi32(high_a, c3, _mm512_set1_epi32(int(k1)), 0x96);
    c1 = low_b;
    c3 = low_a;
  }
  const __m512i ab = _mm512_unpacklo_epi32(c0, c1), cd = _mm512_unpacklo_epi32(c2, c3);
  const __m512i ef = _mm512_unpackhi_epi32(c0, c1), gh = _mm512_unpackhi_epi32(c2, c3);
  _mm512_storeu_si512(words, _mm512_unpacklo_epi64(ab, cd));
  _mm512_storeu_si512(words + 16, _mm512_unpackhi_epi64(ab, cd));
  _mm512_storeu_si512(words + 32, _mm512_unpacklo_epi64(ef, gh));
  _mm512_storeu_si512(words + 48, _mm512_unpackhi_epi64(ef, gh));
#elif defined(__AVX2__)
  const __m256i a = _mm256_set1_epi32(int(0xD2511F53u)), b = _mm256_set1_epi32(int(0xCD9E8D57u));
  const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
  auto multiply = [](__m256i m, __m256i c, __m256i* low) {
    const __m256i even = _mm256_mul_epu32(m, c), odd = _mm256_mul_epu32(m, _mm256_srli_epi64(c, 32));
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    return _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  };
  __m256i c0 = _mm256_add_epi32(_mm256_set1_epi32(int(block)), order), c1 = _mm256_set1_epi32(int(uint32_t(key[2])));
  __m256i c2 = _mm256_set1_epi32(int(uint32_t(key[3]))), c3 = _mm256_set1_epi32(int(uint32_t(key[1])));
  uint32_t k0 = uint32_t(uint64_t(key[0])), k1 = uint32_t(uint64_t(key[0]) >> 32);
  for (int turn = 0; turn < 10; ++turn, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    __m256i low_a, low_b;
    const __m256i high_a = multiply(a, c0, &low_a), high_b = multiply(b, c2, &low_b);
    c0 = _mm256_xor_si256(_mm256_xor_si256(high_b, c1), _mm256_set1_epi32(int(k0)));
    c2 = _mm256_xor_si256(_mm256_xor_si256(high_a, c3), _mm256_set1_epi32(int(k1)));
    c1 = low_b;
    c3 = low_a;
  }
  const __m256i ab = _mm256_unpacklo_epi32(c0, c1), cd = _mm256_unpacklo_epi32(c2, c3);
  const __m256i ef = _mm256_unpackhi_epi32(c0, c1), gh = _mm256_unpackhi_epi32(c2, c3);
  auto put = [&](int at, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + at), x); };
  put(0, _mm256_unpacklo_epi64(ab, cd));
  put(8, _mm256_unpackhi_epi64(ab, cd));
  put(16, _mm256_unpacklo_epi64(ef, gh));
  put(24, _mm256_unpackhi_epi64(ef, gh));
#else
  for (uint32_t i = 0; i < kLanes; ++i) {
    const Philox four = philox(key, block + i);
    std::memcpy(words + 4 * i, four.word, sizeof four.word);
  }
#endif
}

// Not less than the Gumbel noise of each word, and rarely more by over 0.4. With v = 1 - u the noise -log(-log(u)) is at
// most -log(v), and the bits of a float, read as an integer, are a lower bound of its logarithm.
inline Floats noise_bound(const uint32_t* words) {
  constexpr float kSlope = -0.69314718f / (1 << 23), kTop = 0.69314718f * 127 + 0.001f;
#if defined(__AVX512F__)
  const __m512i u = _mm512_srli_epi32(_mm512_loadu_si512(words), 9);
  const Floats v = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_set1_epi32(0x7fffff), u)) + broadcast(0.5f);
  const Floats log = _mm512_cvtepi32_ps(_mm512_castps_si512(v * broadcast(0x1p-23f)));
#elif defined(__AVX2__)
  const __m256i u = _mm256_srli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)), 9);
  const Floats v = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_set1_epi32(0x7fffff), u)) + broadcast(0.5f);
  const Floats log = _mm256_cvtepi32_ps(_mm256_castps_si256(v * broadcast(0x1p-23f)));
#else
  float bits[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const float v = (float(0x7fffff - (words[i] >> 9)) + 0.5f) * 0x1p-23f;
    int32_t pattern;
    std::memcpy(&pattern, &v, 4);
    bits[i] = float(pattern);
  }
  const Floats log = load(bits);
#endif
  return fma(log, broadcast(kSlope), broadcast(kTop));
}

// Raises (*drawn, *drawn_id, *drawn_logit) to the greatest logit / temperature + noise of the block.
template <class T>
inline void sample_block(const T* x, int64_t n, int64_t first_id, float temperature, const int64_t* key, float* drawn,
                         int64_t* drawn_id, float* drawn_logit) {
  constexpr float kMostNoise = 16.65f;  // of the greatest uniform, 1 - 2^-24
  uint32_t words[4 * kLanes];
  const Floats divisor = broadcast(temperature);
  for (int64_t i = 0; i < n; i += 4 * kLanes) {
    Floats scaled[4];
    uint32_t possible = 0;
    for (int part = 0; part < 4; ++part) {
      const int64_t at = i + part * kLanes, left = n - at;
      const Floats v = left >= kLanes ? load(x + at) : left > 0 ? load_part(x + at, left, -INFINITY) : broadcast(-INFINITY);
      scaled[part] = v / divisor;
      possible |= above(scaled[part] + broadcast(kMostNoise), broadcast(*drawn));
    }
    if (!possible) continue;
    noise_words(key, uint32_t((first_id + i) / 4), words);
    for (int part = 0; part < 4; ++part) {
      const Floats bound = scaled[part] + noise_bound(words + part * kLanes);
      uint32_t candidates = above(bound, broadcast(*drawn));
      if (!candidates) continue;
      float bounds[kLanes], values[kLanes];
      store(bounds, bound);
      store(values, scaled[part]);
      for (; candidates; candidates &= candidates - 1) {
        const int lane = __builtin_ctz(candidates);
        if (!(bounds[lane] > *drawn)) continue;
        const float noisy = values[lane] - std::log(-std::log(uniform(words[part * kLanes + lane])));
        if (!(noisy > *drawn)) continue;
        *drawn = noisy;
        *drawn_id = first_id + i + part * kLanes + lane;
        *drawn_logit = to_float(x[i + part * kLanes + lane]);
      }
    }
  }
}

}  // namespace refusion::cpu::REFUSION_ISA
