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
                  int64_t head_dim, float* out, const Floats* keep, const RowsAhead& ahead) {
    const Element* first = values + offset / Kind::kWidth * step;
    const int64_t steps = ceil_div(count, Kind::kWidth);
    for (int64_t d = 0; d < head_dim; d += kRows) {
      ahead.ask(ahead.count * d / head_dim, ahead.count * (d + kRows) / head_dim);
      multiply_rows<Kind, V>(least(kRows, head_dim - d), first + d, 1, step, weights, steps, out + d * kTile, keep);
    }
  }
};

template <class T>
struct Operands<T, Singles> : VectorProducts<Singles> {
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

  static const float* weights(const float* scores, int64_t, int, float*) { return scores; }

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

  // Pairs of keys: [count / 2][head_dim]; an odd last key is paired with zeros.
  static const Element* values(const BFloat16* v, int64_t stride, int64_t count, int64_t head_dim, const uint8_t* seen,
                               float* buffer, int64_t* step) {
    *step = head_dim;
    auto* pairs = reinterpret_cast<Element*>(buffer);
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,  //
                                         39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (int64_t i = 0; i < count; i += 2)
      for (int64_t d = 0; d < head_dim; d += 32) {
        const int64_t some = least(32, head_dim - d);
        const auto row = [&](int64_t key) {
          const bool use = key < count && (seen == nullptr || seen[key]);
          return use ? load_pairs(v + key * stride + d, some) : _mm512_setzero_si512();
        };
        const __m512i even = row(i), odd = row(i + 1);
        Element* const to = pairs + i / 2 * head_dim + d;
        _mm512_mask_storeu_epi32(to, first_lanes(least(16, some)), _mm512_permutex2var_epi16(even, low, odd));
        if (some > 16)
          _mm512_mask_storeu_epi32(to + 16, first_lanes(some - 16), _mm512_permutex2var_epi16(even, high, odd));
      }
    return pairs;
  }

  static const Element* weights(const float* scores, int64_t count, int vectors, float* buffer) {
    auto* pairs = reinterpret_cast<Element*>(buffer);
    for (int64_t i = 0; i < count; i += 2)
      for (int v = 0; v < vectors; ++v) {
        const Floats low = load(scores + i * kTile + v * kLanes);
        const Floats high = i + 1 < count ? load(scores + (i + 1) * kTile + v * kLanes) : broadcast(0.0f);
        const __m512i even = _mm512_cvtepu16_epi32(narrow(low, BFloat16()));
        const __m512i odd = _mm512_cvtepu16_epi32(narrow(high, BFloat16()));
        _mm512_storeu_si512(pairs + i / 2 * kTile + v * kLanes, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
      }
    return pairs;
  }
};
#endif

}  // namespace
}  // namespace refusion::cpu::REFUSION_ISA
