// attend's products of bfloat16 blocks in AMX tiles.
//
// Scores S^T = K Q^T take keys straight from the cache: sixteen rows of it, 32 dimensions wide, are a left operand as
// they lie. Queries in pairs of dimensions and weights in pairs of keys are right operands as the vector kernels have
// them, and states out[dim][lane] are accumulators. Only values are repacked: O^T = V^T P^T wants them transposed, once
// a block for all queries.
#pragma once
#include "cpu/kernels/attend_operands.h"
#include "tiles.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

struct Tiles {
  using Element = Pairs::Element;
  static constexpr int kWidth = 2;

  using Setup = TileShapes;
};

constexpr int64_t kTileKeys = 32;                      // keys of one product with values
constexpr int64_t kValueRow = kBlock + kTileKeys;      // a block's keys, and zeros for products that start within it
constexpr int64_t kLaneBytes = kTile * sizeof(float);  // from one row of queries, scores, weights or states to the next

// 32 rows x 8 dimensions to 8 rows of 32 keys: 16 bytes of rows j, 8 + j, 16 + j and 24 + j fill a register, then each
// of its quarters is an 8 x 8 transposition.
inline void transpose_values(const BFloat16* const* row, int64_t d, BFloat16* to) {
  __m512i a[8], b[8];
  const auto piece = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row[i] + d)); };
  for (int j = 0; j < 8; ++j) {
    __m512i x = _mm512_castsi128_si512(piece(j));
    x = _mm512_mask_broadcast_i32x4(x, 0x00f0, piece(8 + j));
    x = _mm512_mask_broadcast_i32x4(x, 0x0f00, piece(16 + j));
    a[j] = _mm512_mask_broadcast_i32x4(x, 0xf000, piece(24 + j));
  }
  for (int i = 0; i < 4; ++i) {
    b[2 * i] = _mm512_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm512_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j) {
      a[4 * i + 2 * j] = _mm512_unpacklo_epi32(b[4 * i + j], b[4 * i + 2 + j]);
      a[4 * i + 2 * j + 1] = _mm512_unpackhi_epi32(b[4 * i + j], b[4 * i + 2 + j]);
    }
  for (int j = 0; j < 4; ++j) {
    _mm512_storeu_si512(to + (d + 2 * j) * kValueRow, _mm512_unpacklo_epi64(a[j], a[4 + j]));
    _mm512_storeu_si512(to + (d + 2 * j + 1) * kValueRow, _mm512_unpackhi_epi64(a[j], a[4 + j]));
  }
}

template <>
struct Operands<BFloat16, Tiles> {
  using Element = Tiles::Element;
  using Vectors = Operands<BFloat16, Pairs>;

  static void query(const BFloat16* q, int64_t head_dim, float sign, Element* tile) {
    Vectors::query(q, head_dim, sign, tile);
  }

  static const Element* keys(const BFloat16* k, int64_t stride, int64_t count, int64_t head_dim, float* buffer,
                             int64_t* row) {
    return Vectors::keys(k, stride, count, head_dim, buffer, row);
  }

  // [head_dim][kValueRow]; rows that nobody sees become zeros, and so do the missing ones behind the last.
  static const Element* values(const BFloat16* v, int64_t stride, int64_t count, int64_t head_dim, const uint8_t* seen,
                               float* buffer, int64_t* step) {
    static const BFloat16 zeros[256] = {};
    auto* to = reinterpret_cast<BFloat16*>(buffer);
    for (int64_t key = 0; key < count + kTileKeys && key < kValueRow; key += kTileKeys) {
      const BFloat16* row[kTileKeys];
      for (int64_t i = 0; i < kTileKeys; ++i) {
        const bool use = key + i < count && (seen == nullptr || seen[key + i]);
        row[i] = use ? v + (key + i) * stride : zeros;
      }
      for (int64_t d = 0; d < head_dim; d += 8) transpose_values(row, d, to + key);
    }
    *step = kValueRow;
    return reinterpret_cast<const Element*>(to);
  }

  // Pairs of keys, filled up with zeros to whole products.
  static Floats weigh(const float* column, int64_t count, Floats top, float scale, Element* weights) {
    for (int64_t pair = ceil_div(count, 2); pair % (kTileKeys / 2) != 0; ++pair)
      _mm512_storeu_si512(weights + pair * kTile, _mm512_setzero_si512());
    return Vectors::weigh(column, count, top, scale, weights);
  }

  // Writes scores of whole groups of sixteen keys; `spare` holds what is copied of the last one, so that no row behind
  // the block is read.
  template <int V>
  static void score(const Element* keys, int64_t row, int64_t count, const Element* queries, int64_t head_dim,
                    float* scores, float* spare, const RowsAhead&) {
    const int64_t whole = count / 16 * 16, bytes = row * 4;
    int64_t key = 0;
    for (; key + 32 <= whole; key += 32)
      score_groups<V, 2>(keys + key * row, bytes, queries, head_dim, scores + key * kTile);
    if (key < whole) score_groups<V, 1>(keys + key * row, bytes, queries, head_dim, scores + key * kTile);
    if (whole == count) return;
    auto* last = reinterpret_cast<Element*>(spare);
    for (int64_t i = 0; i < 16; ++i) {
      if (whole + i < count) std::memcpy(last + i * head_dim / 2, keys + (whole + i) * row, size_t(head_dim) * 2);
      else std::memset(last + i * head_dim / 2, 0, size_t(head_dim) * 2);
    }
    score_groups<V, 1>(last, head_dim * 2, queries, head_dim, scores + whole * kTile);
  }

  // out = out * keep + V^T P^T for keys `offset` .. of the block, 32 dimensions and up to 32 rows at a time.
  template <int V>
  static void add(const Element* values, int64_t, int64_t offset, int64_t count, const Element* weights,
                  int64_t head_dim, float* out, const Floats* keep, const RowsAhead&, const RowsAhead&) {
    constexpr int64_t kRowBytes = kValueRow * 2;
    rescale<V>(head_dim, out, keep);
    for (int64_t d = 0; d < head_dim; d += 32) {
      const auto* v = reinterpret_cast<const BFloat16*>(values) + d * kValueRow + offset;
      float* o = out + d * kTile;
      _tile_loadd(0, o, kLaneBytes);
      _tile_loadd(2, o + 16 * kTile, kLaneBytes);
      if constexpr (V == 2) {
        _tile_loadd(1, o + 16, kLaneBytes);
        _tile_loadd(3, o + 16 * kTile + 16, kLaneBytes);
      }
      for (int64_t key = 0; key < count; key += kTileKeys) {
        const Element* p = weights + key / 2 * kTile;
        _tile_loadd(4, v + key, kRowBytes);
        _tile_loadd(6, p, kLaneBytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, v + 16 * kValueRow + key, kRowBytes);
        _tile_dpbf16ps(2, 5, 6);
        if constexpr (V == 2) {
          _tile_loadd(7, p + 16, kLaneBytes);
          _tile_dpbf16ps(1, 4, 7);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      _tile_stored(0, o, kLaneBytes);
      _tile_stored(2, o + 16 * kTile, kLaneBytes);
      if constexpr (V == 2) {
        _tile_stored(1, o + 16, kLaneBytes);
        _tile_stored(3, o + 16 * kTile + 16, kLaneBytes);
      }
    }
  }

 private:
  // Groups of sixteen keys against V x 16 queries.
  template <int V, int kGroups>
  static void score_groups(const Element* keys, int64_t row_bytes, const Element* queries, int64_t head_dim,
                           float* scores) {
    const auto* second = reinterpret_cast<const char*>(keys) + 16 * row_bytes;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t d = 0; d < head_dim; d += 32) {
      const Element* q = queries + d / 2 * kTile;
      _tile_loadd(4, keys + d / 2, row_bytes);
      _tile_loadd(6, q, kLaneBytes);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (V == 2) {
        _tile_loadd(7, q + 16, kLaneBytes);
        _tile_dpbf16ps(1, 4, 7);
      }
      if constexpr (kGroups == 2) {
        _tile_loadd(5, second + d * 2, row_bytes);
        _tile_dpbf16ps(2, 5, 6);
        if constexpr (V == 2) _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, scores, kLaneBytes);
    if constexpr (V == 2) _tile_stored(1, scores + 16, kLaneBytes);
    if constexpr (kGroups == 2) {
      _tile_stored(2, scores + 16 * kTile, kLaneBytes);
      if constexpr (V == 2) _tile_stored(3, scores + 16 * kTile + 16, kLaneBytes);
    }
  }

  // Maxima seldom move after the first blocks: then nothing is to be done.
  template <int V>
  static void rescale(int64_t head_dim, float* out, const Floats* keep) {
    uint32_t same = 0xffff;
    for (int v = 0; v < V; ++v) same &= equal(keep[v], broadcast(1));
    if (same == 0xffff) return;
    for (int64_t d = 0; d < head_dim; ++d)
      for (int v = 0; v < V; ++v) {
        float* o = out + d * kTile + v * kLanes;
        store(o, load(o) * keep[v]);
      }
  }
};

}  // namespace
}  // namespace refusion::cpu::REFUSION_ISA
