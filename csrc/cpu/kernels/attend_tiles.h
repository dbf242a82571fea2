// attend for many rows: tiles of query rows against blocks of keys with an online softmax (Milakov and Gimelshein,
// arXiv 1805.02867).
#pragma once
#include "attend_operands.h"
#include "transpose.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

// What a thread needs for a block: every array 64-byte aligned.
struct Buffers {
  float* queries;  // [tiles][head_dim][kTile], or pairs
  float* scores;   // [kBlock][kTile]
  float* weights;  // [kBlock][kTile], or pairs of keys
  float* keys;     // [kBlock][head_dim]
  float* values;   // [kBlock][head_dim], or pairs of keys
};

constexpr int64_t kFloatsOfTask(int64_t head_dim) { return kTaskRows * (head_dim + 2); }
constexpr int64_t kFloatsOfThread(int64_t head_dim) {
  return kTaskRows * head_dim + 2 * kBlock * kTile + 2 * kBlock * head_dim;
}

Buffers buffers_at(float* p, int64_t head_dim) {
  Buffers b;
  b.queries = p, p += kTaskRows * head_dim;
  b.scores = p, p += kBlock * kTile;
  b.weights = p, p += kBlock * kTile;
  b.keys = p, p += kBlock * head_dim;
  b.values = p;
  return b;
}

Partial partial_at(float* p) { return {p, p + kTaskRows, p + 2 * kTaskRows}; }

// Windows of a tile's rows as lanes, in absolute cache rows.
struct TileWindows {
  float begin[kTile], end[kTile];
  Range all;  // smallest range that holds every window
};

TileWindows windows_of(const Work& work, const Task& task, int64_t first) {
  TileWindows w;
  w.all = {work.op.capacity, 0};
  for (int i = 0; i < kTile; ++i) {
    w.begin[i] = w.end[i] = 0;
    if (first + i >= task.rows) continue;
    const Range window = work.window(task, first + i);
    w.begin[i] = float(window.begin), w.end[i] = float(window.end);  // rows are far below 2^24: exact
    if (window.begin < window.end) w.all = {least(w.all.begin, window.begin), most(w.all.end, window.end)};
  }
  return w;
}

// Scores to weights, in place; updates most and sum and returns the factor for what was accumulated before.
template <int V>
inline void softmax(float* scores, int64_t first, int64_t count, int64_t committed, float scale,
                    const TileWindows& windows, Partial state, Floats* keep) {
  for (int v = 0; v < V; ++v) {
    float* column = scores + v * kLanes;
    const Floats before = load(state.most + v * kLanes);
    const Floats begin = load(windows.begin + v * kLanes), end = load(windows.end + v * kLanes);
    Floats top = before;
    for (int64_t i = 0; i < count; ++i) {
      Floats x = load(column + i * kTile);
      if (first + i >= committed) store(column + i * kTile, x = visible(x, broadcast(float(first + i)), begin, end));
      top = at_least(x, top);
    }
    Floats sum = broadcast(0.0f);
    for (int64_t i = 0; i < count; ++i) {
      const Floats p = weight((load(column + i * kTile) - top) * broadcast(scale));
      store(column + i * kTile, p);
      sum = sum + p;
    }
    keep[v] = weight((before - top) * broadcast(scale));
    store(state.most + v * kLanes, top);
    store(state.sum + v * kLanes, fma(load(state.sum + v * kLanes), keep[v], sum));
  }
}

// out += weights * values where some value is not finite: a row takes nothing from a key that it does not see.
template <class T>
void add_seen(const T* v, int64_t stride, int64_t count, int64_t head_dim, const uint8_t* seen, const float* weights,
              int lanes, const Floats* keep, float* out) {
  float factor[kTile];
  for (int i = 0; i < lanes / kLanes; ++i) store(factor + i * kLanes, keep[i]);
  for (int64_t d = 0; d < head_dim; ++d)
    for (int lane = 0; lane < lanes; ++lane) {
      float sum = out[d * kTile + lane] * factor[lane];
      for (int64_t i = 0; i < count; ++i)
        if (seen[i] && weights[i * kTile + lane] != 0) sum += weights[i * kTile + lane] * to_float(v[i * stride + d]);
      out[d * kTile + lane] = sum;
    }
}

template <class T>
bool block_finite(const T* v, int64_t stride, int64_t count, int64_t head_dim, const uint8_t* seen) {
  const Floats zero = broadcast(0.0f);
  Floats sum = zero;
  for (int64_t i = 0; i < count; ++i) {
    if (!seen[i]) continue;
    for (int64_t d = 0; d < head_dim; d += kLanes)
      sum = fma(load_lanes(v + i * stride + d, lanes_at(d, head_dim)), zero, sum);
  }
  return reduce_add(sum) == 0.0f;
}

// Rows first .. first + kLanes of the task's queries as [step][kTile]; `spare` holds them row by row.
template <class T, class Kind>
void arrange_queries(const Work& work, const Task& task, int64_t first, typename Kind::Element* spare,
                     typename Kind::Element* to) {
  static_assert(kBlock * kTile >= kLanes * kMostDims);
  const int64_t head_dim = work.op.head_dim, steps = head_dim / Kind::kWidth;
  for (int64_t i = 0; i < kLanes; ++i) {
    auto* row = spare + i * kMostDims;
    if (first + i < task.rows) Operands<T, Kind>::query(work.query<T>(task, first + i), head_dim, work.sign, row);
    else std::memset(row, 0, size_t(steps) * 4);
  }
  for (int64_t step = 0; step < steps; step += kLanes)
    transpose(spare + step, kMostDims, to + step * kTile, kTile, lanes_at(step, steps));
}

// Keys of a block that a tile takes: behind the committed rows only those that some row of it sees, from an even one on
// (keys go in pairs).
Range keys_of(Range block, int64_t committed, Range windows) {
  if (block.begin < committed) return {block.begin, least(block.end, most(committed, windows.end))};
  const int64_t first = most(block.begin, windows.begin);
  return {first - (first - block.begin) % 2, least(block.end, windows.end)};
}

template <int V>
struct Vectors {
  static constexpr int value = V;
};

template <class T, class Kind>
void attend_tiles(const Work& work, const Task& task, Partial partial, const Buffers& buffers) {
  using Element = typename Kind::Element;
  using Ops = Operands<T, Kind>;
  const Attend& op = work.op;
  const int64_t head_dim = op.head_dim, committed = op.committed[task.sequence];
  const int64_t tiles = ceil_div(task.rows, kTile), steps = head_dim / Kind::kWidth;
  const T* k = work.cache<T>(op.k_cache, op.k_strides, task);
  const T* v = work.cache<T>(op.v_cache, op.v_strides, task);
  auto* queries = reinterpret_cast<Element*>(buffers.queries);
  [[maybe_unused]] const typename Kind::Setup setup;

  for (int64_t first = 0; first < task.rows; first += kLanes)
    arrange_queries<T, Kind>(work, task, first, reinterpret_cast<Element*>(buffers.scores),
                             queries + first / kTile * kTile * steps + first % kTile);
  TileWindows windows[kTaskRows / kTile];
  for (int64_t t = 0; t < tiles; ++t) {
    windows[t] = windows_of(work, task, t * kTile);
    const Partial state = partial.tile(t, head_dim);
    for (int i = 0; i < kTile; ++i) state.most[i] = kNothing, state.sum[i] = 0;
    std::memset(state.out, 0, size_t(kTile * head_dim) * 4);
  }

  const auto ahead = [&](const T* base, int64_t row, int64_t begin, int64_t end) {
    constexpr int64_t size = sizeof(T);
    return RowsAhead{reinterpret_cast<const char*>(base + begin * row), row * size, head_dim * size, end - begin};
  };
  for (int64_t block = task.begin; block < task.end; block += kBlock) {
    const int64_t block_end = least(block + kBlock, task.end);
    const bool masked = block_end > committed;
    const uint8_t* seen = nullptr;
    uint8_t seen_here[kBlock];
    if (masked) {
      for (int64_t key = block; key < block_end; ++key)
        seen_here[key - block] = key < committed || work.seen[task.seen + key - committed];
      seen = seen_here;
    }
    const int64_t size = block_end - block, k_row = op.k_strides.row, v_row = op.v_strides.row;
    const bool finite = !masked || block_finite(v + block * v_row, v_row, size, head_dim, seen);
    int64_t key_row, value_step = 0;
    const Element* keys = Ops::keys(k + block * k_row, k_row, size, head_dim, buffers.keys, &key_row);
    const Element* values = nullptr;  // until the first tile has its weights

    for (int64_t t = 0; t < tiles; ++t) {
      const Range taken = keys_of({block, block_end}, committed, windows[t].all);
      if (taken.begin >= taken.end) continue;
      const int64_t first = taken.begin, count = taken.end - first, offset = first - block;
      const Partial state = partial.tile(t, head_dim);
      const bool narrow = task.rows - t * kTile <= kLanes;
      const Element* queries_of_tile = queries + t * kTile * steps;
      Floats keep[2];
      const bool leads = values == nullptr;  // and asks for the values, then for the keys of the next block
      const auto run = [&](auto vectors) {
        constexpr int V = decltype(vectors)::value;
        Ops::template score<V>(keys + offset * key_row, key_row, count, queries_of_tile, head_dim, buffers.scores,
                               buffers.weights, leads ? ahead(v, v_row, block, block_end) : RowsAhead());
        softmax<V>(buffers.scores, first, count, committed, work.scale, windows[t], state, keep);
        if (!finite) {
          add_seen(v + first * v_row, v_row, count, head_dim, seen + offset, buffers.scores, V * kLanes, keep,
                   state.out);
          return;
        }
        if (leads) values = Ops::values(v + block * v_row, v_row, size, head_dim, seen, buffers.values, &value_step);
        const Element* weights = Ops::weights(buffers.scores, count, V, buffers.weights);
        Ops::template add<V>(values, value_step, offset, count, weights, head_dim, state.out, keep,
                              leads ? ahead(k, k_row, block_end, least(block_end + kBlock, task.end)) : RowsAhead());
      };
      if (narrow) run(Vectors<1>());
      else run(Vectors<2>());
    }
  }
}

}  // namespace
}  // namespace refusion::cpu::REFUSION_ISA
