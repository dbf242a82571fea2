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

// Hides what a tile's rows do not see of a block's keys first .. first + count; top: the maxima with these keys.
template <int V>
inline void mask_scores(float* scores, int64_t first, int64_t count, int64_t committed, const TileWindows& windows,
                        const float* most_before, Floats* top) {
  for (int v = 0; v < V; ++v) {
    const Floats begin = load(windows.begin + v * kLanes), end = load(windows.end + v * kLanes);
    for (int64_t i = most(0, committed - first); i < count; ++i) {
      float* x = scores + i * kTile + v * kLanes;
      store(x, visible(load(x), broadcast(float(first + i)), begin, end));
    }
    top[v] = load(most_before + v * kLanes);
  }
  const auto at = [&](int64_t i, int v) { return load(scores + i * kTile + v * kLanes); };
  int64_t i = 0;
  for (; i + 2 <= count; i += 2)
    for (int v = 0; v < V; ++v) top[v] = at_least(at_least(at(i, v), at(i + 1, v)), top[v]);
  if (i < count)
    for (int v = 0; v < V; ++v) top[v] = at_least(at(i, v), top[v]);
}

// Scores to the weights that `Ops` takes; updates most and sum. keep: the factor for what was accumulated before.
template <class Ops, int V>
inline void softmax(const float* scores, int64_t count, float scale, const Floats* top, const Partial& state,
                    typename Ops::Element* weights, Floats* keep) {
  for (int v = 0; v < V; ++v) {
    float* const most = state.most + v * kLanes;
    float* const sum = state.sum + v * kLanes;
    keep[v] = weight((load(most) - top[v]) * broadcast(scale));
    store(most, top[v]);
    const Floats more = Ops::weigh(scores + v * kLanes, count, top[v], scale, weights + v * kLanes);
    store(sum, fma(load(sum), keep[v], more));
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

// Rows [begin, end) of a cache, to be asked for.
template <class T>
RowsAhead rows_ahead(const T* cache, int64_t row, int64_t head_dim, Range rows) {
  constexpr int64_t size = sizeof(T);
  return {reinterpret_cast<const char*>(cache + rows.begin * row), row * size, head_dim * size, rows.end - rows.begin};
}

// A task: its tiles of queries against one block of keys after the other.
template <class T, class Kind>
class TiledTask {
 public:
  TiledTask(const Work& work, const Task& task, const Partial& partial, const Buffers& buffers)
      : work(work), task(task), partial(partial), buffers(buffers) {}

  void run() {
    [[maybe_unused]] const typename Kind::Setup setup;
    start();
    for (int64_t key = task.begin; key < task.end; key += kBlock) {
      Block block = block_at(key);
      for (int64_t t = 0; t < tiles; ++t) {
        if (task.rows - t * kTile <= kLanes) attend_tile<1>(t, block);
        else attend_tile<2>(t, block);
      }
    }
  }

 private:
  using Element = typename Kind::Element;
  using Ops = Operands<T, Kind>;

  struct Block {
    Range rows;             // of the cache
    bool all_seen, finite;  // finite: every value that some token sees
    uint8_t seen[kBlock];   // where not all_seen: does any token see the row?
    const Element* keys;
    int64_t key_row;
    const Element* values = nullptr;  // packed once the first tile has its weights
    int64_t value_step = 0;

    int64_t size() const { return rows.end - rows.begin; }
    const uint8_t* seen_or_all() const { return all_seen ? nullptr : seen; }
  };

  // Packs the queries and empties the states.
  void start() {
    for (int64_t first = 0; first < task.rows; first += kLanes)
      arrange_queries<T, Kind>(work, task, first, reinterpret_cast<Element*>(buffers.scores),
                               queries + first / kTile * kTile * steps + first % kTile);
    for (int64_t t = 0; t < tiles; ++t) {
      windows[t] = windows_of(work, task, t * kTile);
      const Partial state = partial.tile(t, head_dim);
      for (int i = 0; i < kTile; ++i) state.most[i] = kNothing, state.sum[i] = 0;
      std::memset(state.out, 0, size_t(kTile * head_dim) * 4);
    }
  }

  Block block_at(int64_t first) const {
    Block block;
    block.rows = {first, least(first + kBlock, task.end)};
    block.all_seen = block.rows.end <= committed;
    if (!block.all_seen)
      for (int64_t row = first; row < block.rows.end; ++row)
        block.seen[row - first] = row < committed || work.seen[task.seen + row - committed];
    block.finite = block.all_seen || block_finite(v + first * v_row, v_row, block.size(), head_dim, block.seen);
    block.keys = Ops::keys(k + first * k_row, k_row, block.size(), head_dim, buffers.keys, &block.key_row);
    return block;
  }

  template <int V>
  void attend_tile(int64_t t, Block& block) const {
    const Range taken = keys_of(block.rows, committed, windows[t].all);
    if (taken.begin >= taken.end) return;
    const int64_t count = taken.end - taken.begin, offset = taken.begin - block.rows.begin;
    const Partial state = partial.tile(t, head_dim);
    // The first tile asks for rows that come next: the values of the first block, then keys and values of the next one.
    const bool leads = block.values == nullptr;
    const Range next = leads ? Range{block.rows.end, least(block.rows.end + kBlock, task.end)} : Range{0, 0};
    const Range first = leads && block.rows.begin == task.begin ? block.rows : Range{0, 0};
    Floats top[V], keep[V];

    Ops::template score<V>(block.keys + offset * block.key_row, block.key_row, count, queries + t * kTile * steps,
                           head_dim, buffers.scores, buffers.weights, rows_ahead(v, v_row, head_dim, first));
    mask_scores<V>(buffers.scores, taken.begin, count, committed, windows[t], state.most, top);
    if (!block.finite) {
      softmax<Operands<float, Singles>, V>(buffers.scores, count, work.scale, top, state, buffers.weights, keep);
      add_seen(v + taken.begin * v_row, v_row, count, head_dim, block.seen + offset, buffers.weights, V * kLanes, keep,
               state.out);
      return;
    }
    auto* weights = reinterpret_cast<Element*>(buffers.weights);
    softmax<Ops, V>(buffers.scores, count, work.scale, top, state, weights, keep);
    if (leads)
      block.values = Ops::values(v + block.rows.begin * v_row, v_row, block.size(), head_dim, block.seen_or_all(),
                                 buffers.values, &block.value_step);
    Ops::template add<V>(block.values, block.value_step, offset, count, weights, head_dim, state.out, keep,
                         rows_ahead(k, k_row, head_dim, next), rows_ahead(v, v_row, head_dim, next));
  }

  const Work& work;
  const Task& task;
  const Partial partial;
  const Buffers& buffers;
  const int64_t head_dim = work.op.head_dim, committed = work.op.committed[task.sequence];
  const int64_t tiles = ceil_div(task.rows, kTile), steps = head_dim / Kind::kWidth;
  const int64_t k_row = work.op.k_strides.row, v_row = work.op.v_strides.row;
  const T* const k = work.cache<T>(work.op.k_cache, work.op.k_strides, task);
  const T* const v = work.cache<T>(work.op.v_cache, work.op.v_strides, task);
  Element* const queries = reinterpret_cast<Element*>(buffers.queries);
  TileWindows windows[kTaskRows / kTile];
};

}  // namespace
}  // namespace refusion::cpu::REFUSION_ISA
