// What the two products of attend take, by element type and kind of product: queries packed once, blocks of keys and
// values as they lie where possible, weights; and the products themselves.
#pragma once
#include <cstring>

#include "attend_work.h"
#include "lanes.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

template <class T, class Kind>
struct Operands;

// Rows of the cache that are wanted soon, asked for while products are taken.
struct RowsAhead {
  const char* rows = nullptr;
  int64_t stride = 0, bytes = 0, count = 0;

  void ask(int64_t first, int64_t end) const {
    for (int64_t i = first; i < least(end, count); ++i)
      for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(rows + i * stride + line, 0, 2);
  }
  // The rows that fall to steps [first, end) of `steps`.
  void ask_share(int64_t first, int64_t end, int64_t steps) const { ask(count * first / steps, count * end / steps); }
};

// Products in vector registers.
template <class Kind>
struct VectorProducts {
  using Element = typename Kind::Element;

  // scores[key][lane] of V vectors of queries [steps][kTile].
  template <int V>
  static void score(const Element* keys, int64_t row, int64_t count, const Element* queries, int64_t head_dim,
                    float* scores, float*, const RowsAhead& ahead) {
    // The rows of the next group come while this one is multiplied: one row is too short for the hardware to foresee.
    const int64_t steps = head_dim / Kind::kWidth;
    for (int64_t key = 0; key < count; key += kRows) {
      const int64_t rows = least(kRows, count - key);
      for (int64_t next = key + rows; next < least(count, key + 2 * kRows); ++next)
        for (int64_t step = 0; step < steps; step += 16) __builtin_prefetch(keys + next * row + step);
      ahead.ask(key, key + rows);
      multiply_rows<Kind, V>(rows, keys + key * row, row, 1, queries, steps, scores + key * kTile, nullptr);
    }
  }

  // out[dim][lane] = out * keep + sum of values * weights over the keys `offset`, `offset` + 1 .. of a block.
  template <int V>
  static void add(const Element* values, int64_t step, int64_t offset, int64_t count, const Element* weights,
                  int64_t head_dim, float* out, const Floats* keep, const RowsAhead& keys_ahead,
                  const RowsAhead& values_ahead) {
    const Element* first = values + offset / Kind::kWidth * step;
    const int64_t steps = ceil_div(count, Kind::kWidth);
    for (int64_t d = 0; d < head_dim; d += kRows) {
      keys_ahead.ask_share(d, d + kRows, head_dim);
      values_ahead.ask_share(d, d + kRows, head_dim);
      multiply_rows<Kind, V>(least(kRows, head_dim - d), first + d, 1, step, weights, steps, out + d * kTile, keep);
    }
  }
};

template <class T>
struct Operands<T, Singles> : VectorProducts<Singles> {
  using Element = float;

  // A query as words; `to` has room for whole vectors.
  static void query(const T* q, int64_t head_dim, float sign, float* to) {
    for (int64_t d = 0; d < head_dim; d += kLanes)
      store(to + d, load_lanes(q + d, lanes_at(d, head_dim)) * broadcast(sign));
  }

  // Keys as they lie where they are float32, else widened.
  static const float* keys(const T* k, int64_t stride, int64_t count, int64_t head_dim, float* buffer,
                           int64_t* row) {
    if constexpr (sizeof(T) == 4) {
      *row = stride;
      return k;
    } else {
      *row = head_dim;
      for (int64_t i = 0; i < count; ++i) widen_row(k + i * stride, head_dim, buffer + i * head_dim);
      return buffer;
    }
  }

  // Values; rows that nobody sees may hold anything and become zeros. seen: null where all are seen.
  static const float* values(const T* v, int64_t stride, int64_t count, int64_t head_dim, const uint8_t* seen,
                             float* buffer, int64_t* step) {
    if (sizeof(T) == 4 && seen == nullptr) {
      *step = stride;
      return reinterpret_cast<const float*>(v);
    }
    *step = head_dim;
    for (int64_t i = 0; i < count; ++i) {
      if (seen == nullptr || seen[i]) widen_row(v + i * stride, head_dim, buffer + i * head_dim);
      else std::memset(buffer + i * head_dim, 0, size_t(head_dim) * 4);
    }
    return buffer;
  }

  // Weights of one vector of rows, column[key * kTile], from their scores and maxima; returns their sum.
  static Floats weigh(const float* column, int64_t count, Floats top, float scale, float* weights) {
    Floats sum = broadcast(0.0f);
    for (int64_t i = 0; i < count; ++i) {
      const Floats p = weight((load(column + i * kTile) - top) * broadcast(scale));
      store(weights + i * kTile, p);
      sum = sum + p;
    }
    return sum;
  }

 private:
  static void widen_row(const T* from, int64_t n, float* to) {
    int64_t d = 0;
    for (; d + kLanes <= n; d += kLanes) store(to + d, load(from + d));
    for (; d < n; ++d) to[d] = to_float(from[d]);
  }
};

#if defined(__AVX512BF16__)
template <>
struct Operands<BFloat16, Pairs> : VectorProducts<Pairs> {
  using Element = Pairs::Element;

  static void query(const BFloat16* q, int64_t head_dim, float sign, Element* to) {
    const __m512i flip = _mm512_set1_epi16(sign < 0 ? int16_t(0x8000) : 0);
    for (int64_t d = 0; d < head_dim; d += 32)
      _mm512_storeu_si512(to + d / 2, _mm512_xor_si512(load_pairs(q + d, head_dim - d), flip));
  }

  static const Element* keys(const BFloat16* k, int64_t stride, int64_t count, int64_t head_dim, float* buffer,
                             int64_t* row) {
    *row = stride / 2;
    if (stride % 2 == 0) return reinterpret_cast<const Element*>(k);
    *row = head_dim / 2;
    auto* copy = reinterpret_cast<BFloat16*>(buffer);
    for (int64_t i = 0; i < count; ++i) std::memcpy(copy + i * head_dim, k + i * stride, size_t(head_dim) * 2);
    return reinterpret_cast<const Element*>(copy);
  }

  // Pairs of keys: [count / 2][head_dim]; an odd last key is paired with zeros. Instructions are chosen that go where
  // products do not: on Zen 4 a permutation of two registers takes a slot of theirs.
  static const Element* values(const BFloat16* v, int64_t stride, int64_t count, int64_t head_dim, const uint8_t* seen,
                               float* buffer, int64_t* step) {
    *step = head_dim;
    auto* pairs = reinterpret_cast<Element*>(buffer);
    // Words are interleaved within quarters of a register: with its eighths in this order they come out as they lay.
    const __m512i eighths = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    for (int64_t i = 0; i < count; i += 2)
      for (int64_t d = 0; d < head_dim; d += 32) {
        const int64_t some = least(32, head_dim - d);
        const auto row = [&](int64_t key) {
          const bool use = key < count && (seen == nullptr || seen[key]);
          return _mm512_permutexvar_epi64(eighths, use ? load_pairs(v + key * stride + d, some) : __m512i());
        };
        const __m512i even = row(i), odd = row(i + 1);
        const __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
        Element* const to = pairs + i / 2 * head_dim + d;
        if (some == 32) {
          _mm512_storeu_si512(to, low);
          _mm512_storeu_si512(to + 16, high);
        } else {
          _mm512_mask_storeu_epi32(to, first_lanes(least(16, some)), low);
          if (some > 16) _mm512_mask_storeu_epi32(to + 16, first_lanes(some - 16), high);
        }
      }
    return pairs;
  }

  // Pairs of keys; an odd last one is paired with zeros. The sum is that of the weights as they are rounded.
  static Floats weigh(const float* column, int64_t count, Floats top, float scale, Element* weights) {
    const __m512i interleaved = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,  //
                                                 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const auto ones = __m512bh(_mm512_set1_epi16(0x3f80));
    const auto of = [&](int64_t i) { return rough_exp2((load(column + i * kTile) - top) * broadcast(scale)); };
    Floats sum = broadcast(0.0f);
    for (int64_t i = 0; i < count; i += 2) {
      const auto halves = __m512i(_mm512_cvtne2ps_pbh(i + 1 < count ? of(i + 1) : broadcast(0.0f), of(i)));
      const __m512i pairs = _mm512_permutexvar_epi16(interleaved, halves);
      _mm512_storeu_si512(weights + i / 2 * kTile, pairs);
      sum = _mm512_dpbf16_ps(sum, __m512bh(pairs), ones);
    }
    return sum;
  }

 private:
  // 2^t for t <= 0 to 4e-6, a thousandth of what rounding to bfloat16 takes; exact at integers.
  static Floats rough_exp2(Floats t) {
    const Floats r = _mm512_reduce_ps(t, 9);  // t - floor(t)
    Floats y = broadcast(0.013555747f);
    y = fma(y, r, broadcast(0.052032370f));
    y = fma(y, r, broadcast(0.24137976f));
    y = fma(y, r, broadcast(0.69303212f));
    return _mm512_scalef_ps(fma(y, r, broadcast(1.0f)), t);
  }
};
#endif

}  // namespace
}  // namespace refusion::cpu::REFUSION_ISA
