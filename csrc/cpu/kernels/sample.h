// Gumbel-max sampling of one block of logits. Noise costs far more than a comparison, so each element is first held
// against an upper bound of what its noise can be; only elements that may become the new maximum pay for logarithms.
#pragma once
#include <cmath>

#include "cpu/simd.h"
#include "refusion/philox.h"

namespace refusion::cpu::REFUSION_ISA {

constexpr int kNoiseVectors = 4;

// Words of ids 4 * block .. 4 * block + kNoiseVectors * kLanes, in the order of the ids.
struct NoiseWords {
  uint32_t word[kNoiseVectors * kLanes];
};

inline NoiseWords noise_words(const int64_t* key, uint32_t block) {
  NoiseWords words;
#if defined(__AVX2__)
  // One counter in each 64-bit lane: the multiplication reads its lower half only, so the upper may hold anything.
#if defined(__AVX512F__)
  using Lanes = __m512i;
  const Lanes order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);  // unpacking below then leaves the words in order
  auto all = [](uint32_t x) { return _mm512_set1_epi64(x); };
  auto add = [](Lanes x, Lanes y) { return _mm512_add_epi64(x, y); };
  auto multiply = [](Lanes x, Lanes y) { return _mm512_mul_epu32(x, y); };
  auto upper = [](Lanes x) { return _mm512_srli_epi64(x, 32); };
  auto exclusive_or = [](Lanes x, Lanes y, Lanes z) { return _mm512_ternarylogic_epi64(x, y, z, 0x96); };
  auto join = [](Lanes low, Lanes high) { return _mm512_mask_blend_epi32(0xaaaa, low, _mm512_slli_epi64(high, 32)); };
  auto store_both = [](uint32_t* to, Lanes x, Lanes y) {
    _mm512_storeu_si512(to, _mm512_unpacklo_epi64(x, y));
    _mm512_storeu_si512(to + kLanes, _mm512_unpackhi_epi64(x, y));
  };
#else
  using Lanes = __m256i;
  const Lanes order = _mm256_setr_epi64x(0, 2, 1, 3);
  auto all = [](uint32_t x) { return _mm256_set1_epi64x(x); };
  auto add = [](Lanes x, Lanes y) { return _mm256_add_epi64(x, y); };
  auto multiply = [](Lanes x, Lanes y) { return _mm256_mul_epu32(x, y); };
  auto upper = [](Lanes x) { return _mm256_srli_epi64(x, 32); };
  auto exclusive_or = [](Lanes x, Lanes y, Lanes z) { return _mm256_xor_si256(_mm256_xor_si256(x, y), z); };
  auto join = [](Lanes low, Lanes high) { return _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0xaa); };
  auto store_both = [](uint32_t* to, Lanes x, Lanes y) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_unpacklo_epi64(x, y));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + kLanes), _mm256_unpackhi_epi64(x, y));
  };
#endif
  const Lanes a = all(0xD2511F53u), b = all(0xCD9E8D57u);
  Lanes c0[2], c1[2], c2[2], c3[2];
  for (uint32_t i = 0; i < 2; ++i) {
    c0[i] = add(all(block + i * (kLanes / 2)), order);
    c1[i] = all(uint32_t(key[2]));
    c2[i] = all(uint32_t(key[3]));
    c3[i] = all(uint32_t(key[1]));
  }
  uint32_t k0 = uint32_t(uint64_t(key[0])), k1 = uint32_t(uint64_t(key[0]) >> 32);
  for (int turn = 0; turn < 10; ++turn, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
    for (int i = 0; i < 2; ++i) {
      const Lanes p0 = multiply(a, c0[i]), p1 = multiply(b, c2[i]);
      c0[i] = exclusive_or(upper(p1), c1[i], all(k0));
      c2[i] = exclusive_or(upper(p0), c3[i], all(k1));
      c1[i] = p1;
      c3[i] = p0;
    }
  for (int i = 0; i < 2; ++i) store_both(words.word + 2 * i * kLanes, join(c0[i], c1[i]), join(c2[i], c3[i]));
#else
  for (uint32_t i = 0; i < kLanes; ++i) {
    const Philox four = philox(key, block + i);
    std::memcpy(words.word + 4 * i, four.word, sizeof four.word);
  }
#endif
  return words;
}

// Not less than the Gumbel noise of each word, and rarely more by over 0.4. With v = 1 - u the noise -log(-log(u)) is
// at most -log(v), and the bits of a float, read as an integer, are a lower bound of its logarithm.
inline Floats noise_bound(const uint32_t* words) {
  constexpr float kLn2 = 0.69314718f, kGreatest = 0x7fffff;  // v is taken as (kGreatest - bits) * 2^-23, half a bit low
#if defined(__AVX512F__)
  const Floats v = broadcast(kGreatest) - _mm512_cvtepi32_ps(_mm512_srli_epi32(_mm512_loadu_si512(words), 9));
  const Floats log = _mm512_cvtepi32_ps(_mm512_castps_si512(v));
#elif defined(__AVX2__)
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
  const Floats v = broadcast(kGreatest) - _mm256_cvtepi32_ps(_mm256_srli_epi32(bits, 9));
  const Floats log = _mm256_cvtepi32_ps(_mm256_castps_si256(v));
#else
  float logs[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const float value = kGreatest - float(words[i] >> 9);
    int32_t bits;
    std::memcpy(&bits, &value, 4);
    logs[i] = float(bits);
  }
  const Floats log = load(logs);
#endif
  return fma(log, broadcast(-kLn2 / (1 << 23)), broadcast(150 * kLn2 + 0.001f));  // 0.001: rounding
}

// The greatest logit / temperature + noise so far.
struct Draw {
  float value = -INFINITY;
  float logit = -INFINITY;
  int64_t id = -1;

  // What an estimate, good to a part in a million, must be above for its element to matter.
  float bar() const { return value - 1e-6f * std::fabs(value); }
};

template <class T>
inline void sample_block(const T* x, int64_t n, int64_t first_id, float temperature, const int64_t* key, Draw* draw) {
  constexpr float kMostNoise = 16.65f;  // of the greatest uniform, 1 - 2^-24
  const Floats coldness = broadcast(temperature < 1e-38f ? 1e38f : 1 / temperature);
  for (int64_t i = 0; i < n; i += kNoiseVectors * kLanes) {
    Floats scaled[kNoiseVectors];
    Floats most = broadcast(-INFINITY);
    for (int part = 0; part < kNoiseVectors; ++part) {
      const int64_t at = i + part * kLanes, left = n - at;
      const Floats least = broadcast(-INFINITY);
      scaled[part] = (left >= kLanes ? load(x + at) : left > 0 ? load_part(x + at, left, -INFINITY) : least) * coldness;
      most = at_least(scaled[part], most);
    }
    if (!above(most + broadcast(kMostNoise), broadcast(draw->bar()))) continue;
    const NoiseWords words = noise_words(key, uint32_t((first_id + i) / 4));
    for (int part = 0; part < kNoiseVectors; ++part) {
      uint32_t lanes = above(scaled[part] + noise_bound(words.word + part * kLanes), broadcast(draw->bar()));
      for (; lanes; lanes &= lanes - 1) {
        const int64_t at = part * kLanes + __builtin_ctz(lanes);
        const float logit = to_float(x[i + at]);
        const float value = logit / temperature - std::log(-std::log(uniform(words.word[at])));
        if (value > draw->value) *draw = {value, logit, first_id + i + at};
      }
    }
  }
}

}  // namespace refusion::cpu::REFUSION_ISA
