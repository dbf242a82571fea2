// The product of row_product.h with packed rows along the lanes: a word of a matrix row is broadcast to sixteen of
// them, and serves up to 64. Nothing is folded at the end of the width. Few rows leave lanes idle (lane_ids.h).
#pragma once
#include "lane_words.h"

#if defined(__AVX512F__)

namespace refusion::cpu::REFUSION_ISA {

template <class T>
struct LaneRows : PackedRows<T> {
  static_assert(kHasLaneWords<T>);
  using Packed = typename PackedRows<T>::Packed;
  static constexpr int64_t kWord = REFUSION_ISA::kWord<T>;

  static int64_t vectors_of(int64_t count) { return (count + kLanes - 1) / kLanes; }
  // Rows as they come lie behind the arranged ones. What stands in the rows behind the last one goes into sums that
  // nobody reads.
  static int64_t room_for(int64_t count) { return 2 * vectors_of(count) * kLanes; }
  Packed* row(int64_t index) const { return this->data + (vectors_of(this->count) * kLanes + index) * this->stride; }

  // From [row][word] to [word][row], sixteen rows and words at a time.
  void arrange() const {
    const int64_t vectors = vectors_of(this->count), words = this->stride / kWord;
    for (int64_t v = 0; v < vectors; ++v)
      for (int64_t word = 0; word < words; word += kLanes)
        transpose(row(v * kLanes) + word * kWord, words, vector(word, v), vectors * kLanes, kLanes);
  }

  // Sums are written up to the next multiple of kLanes.
  void multiply(const T* matrix, int64_t matrix_stride, int64_t width, int64_t ids, float* sums,
                int64_t sums_stride) const {
    const Part part{matrix, matrix_stride, width, ids};
    switch (vectors_of(this->count)) {
      case 1: return add_blocks<1, 8>(part, sums, sums_stride);
      case 2: return add_blocks<2, 8>(part, sums, sums_stride);
      case 3: return add_blocks<3, 8>(part, sums, sums_stride);
      default: return add_blocks<4, 4>(part, sums, sums_stride);
    }
  }

 protected:
  // Word `word` of the sixteen rows of vector `v`.
  Packed* vector(int64_t word, int64_t v) const {
    return this->data + (word * vectors_of(this->count) + v) * kLanes * kWord;
  }

 private:
  static_assert(kPanel <= 4 * kLanes && kGroup % kLanes == 0);

  struct Part {
    const T* matrix;
    int64_t stride, width, ids;
  };

  // A few ids over the whole width before the next few: memory is then read in the order in which it lies.
  template <int V, int kIds>
  void add_blocks(const Part& part, float* sums, int64_t sums_stride) const {
    constexpr int64_t kColumns = kWordBlock * kWord;
    alignas(64) float totals[kGroup][V * kLanes];
    for (int64_t id = 0; id < part.ids; id += kIds) {
      // The ids that come next usually lie behind these.
      const char* next = reinterpret_cast<const char*>(part.matrix + (id + kIds) * part.stride);
      for (int64_t column = 0; column < part.width || column == 0; column += kColumns)
        next = add<V, kIds>(part, id, column, next, totals[id]);
    }
    for (int64_t id = 0; id < part.ids; id += kLanes)
      for (int64_t v = 0; v < V; ++v) {
        const int64_t row = v * kLanes, left = this->count - row;
        transpose(totals[id] + row, V * kLanes, sums + row * sums_stride + id, sums_stride,
                  left < kLanes ? left : kLanes);
      }
  }

  // Adds a block of kIds matrix rows to their totals [kIds][V * kLanes]; the first block sets them. Asks for as much
  // memory from `next` on as it reads, line after line, which lets the hardware run further ahead; returns its end.
  template <int V, int kIds>
  const char* add(const Part& part, int64_t id, int64_t column, const char* next, float* totals) const {
    using P = Product<T>;
    const T* ids[kIds];
    for (int i = 0; i < kIds; ++i)
      ids[i] = part.matrix + (id + i < part.ids ? id + i : part.ids - 1) * part.stride + column;
    Floats sum[kIds][V];
    for (int i = 0; i < kIds; ++i)
      for (int v = 0; v < V; ++v) sum[i][v] = broadcast(0.0f);
    const Packed* const rows = this->data + column * V * kLanes;
    const auto step = [&](int64_t word, int64_t elements) {
      decltype(P::packed(rows)) h[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) h[v] = P::packed(rows + (word * V + v) * kLanes * kWord);
#pragma GCC unroll 8
      for (int i = 0; i < kIds; ++i) {
        const auto w = broadcast_word(ids[i] + word * kWord, elements);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[i][v] = P::add(sum[i][v], h[v], w);
      }
    };
    const int64_t left = part.width - column;
    const int64_t words = left / kWord < kWordBlock ? left / kWord : kWordBlock;
    for (int64_t word = 0; word < words; word += kLanes) {
      for (int i = 0; i < kIds; ++i, next += 64) __builtin_prefetch(next, 0, 2);
      const int64_t end = word + kLanes < words ? word + kLanes : words;
      for (int64_t w = word; w < end; ++w) step(w, kWord);
    }
    if (words < kWordBlock && words * kWord < left) step(words, left - words * kWord);
    for (int i = 0; i < kIds; ++i)
      for (int v = 0; v < V; ++v) {
        float* const total = totals + (i * V + v) * kLanes;
        store(total, column == 0 ? sum[i][v] : load(total) + sum[i][v]);
      }
    return next;
  }
};

}  // namespace refusion::cpu::REFUSION_ISA

#endif
