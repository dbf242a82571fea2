// attend: tiles of query rows against blocks of keys with an online softmax (Milakov and Gimelshein, arXiv 1805.02867).
#include <cstring>

#include "attend_direct.h"
#include "cpu/scratch.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace refusion::cpu::REFUSION_ISA {
namespace {

constexpr int64_t kParallelProducts = 1 << 20;  // multiply-adds below which a parallel region costs more than it saves

// What a thread needs for a block: every array 64-byte aligned.
struct Buffers {
  float* queries;  // [tiles][head_dim][kTile], or pairs
  float* scores;   // [kBlock][kTile]
  float* weights;  // [kBlock][kTile], or pairs of keys
  float* keys;     // [kBlock][head_dim]
  float* values;   // [kBlock][head_dim], or pairs of keys
};

constexpr int64_t kFloatsOfTask(int64_t head_dim) { return kTaskRows * (head_dim + 2); }
constexpr int64_t kFloatsOfThread(int64_t head_dim) { return kTaskRows * head_dim + 2 * kBlock * kTile + 2 * kBlock * head_dim; }

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

// ---- operands, by element type and kind of product

template <class T, class Kind>
struct Operands;

template <class T>
struct Operands<T, Singles> {
  static void query(const T* q, int64_t head_dim, float sign, float* tile) {
    for (int64_t d = 0; d < head_dim; ++d) tile[d * kTile] = to_float(q[d]) * sign;
  }

  // Keys as they lie where they are float32, else widened.
  static const float* keys(const T* k, int64_t stride, int64_t count, int64_t head_dim, float* buffer, int64_t* row) {
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
struct Operands<BFloat16, Pairs> {
  using Element = Pairs::Element;

  static void query(const BFloat16* q, int64_t head_dim, float sign, Element* tile) {
    const uint32_t flip = sign < 0 ? 0x80008000u : 0;
    for (int64_t d = 0; d < head_dim; d += 2)
      tile[d / 2 * kTile] = (uint32_t(q[d].bits) | uint32_t(q[d + 1].bits) << 16) ^ flip;
  }

  static const Element* keys(const BFloat16* k, int64_t stride, int64_t count, int64_t head_dim, float* buffer, int64_t* row) {
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
    const auto row = [&](int64_t i, int64_t d, __mmask16 lanes) {
      const bool use = i < count && (seen == nullptr || seen[i]);
      return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(use ? lanes : 0, v + (use ? i : 0) * stride + d));
    };
    for (int64_t i = 0; i < count; i += 2)
      for (int64_t d = 0; d < head_dim; d += 16) {
        const __mmask16 lanes = first_lanes(least(16, head_dim - d));
        const __m512i pair = _mm512_or_si512(row(i, d, lanes), _mm512_slli_epi32(row(i + 1, d, lanes), 16));
        _mm512_mask_storeu_epi32(pairs + i / 2 * head_dim + d, lanes, pair);
      }
    return pairs;
  }

  static const Element* weights(const float* scores, int64_t count, int vectors, float* buffer) {
    auto* pairs = reinterpret_cast<Element*>(buffer);
    for (int64_t i = 0; i < count; i += 2)
      for (int v = 0; v < vectors; ++v) {
        const Floats low = load(scores + i * kTile + v * kLanes);
        const Floats high = i + 1 < count ? load(scores + (i + 1) * kTile + v * kLanes) : broadcast(0.0f);
        const __m512i pair = _mm512_or_si512(_mm512_cvtepu16_epi32(__m256i(_mm512_cvtneps_pbh(low))),
                                             _mm512_slli_epi32(_mm512_cvtepu16_epi32(__m256i(_mm512_cvtneps_pbh(high))), 16));
        _mm512_storeu_si512(pairs + i / 2 * kTile + v * kLanes, pair);
      }
    return pairs;
  }
};
#endif

// ---- one tile against one block

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
inline void softmax(float* scores, int64_t first, int64_t count, int64_t committed, float scale, const TileWindows& windows,
                    Partial state, Floats* keep) {
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
  for (int64_t i = 0; i < count; ++i) {
    if (!seen[i]) continue;
    float sum = 0;
    for (int64_t d = 0; d < head_dim; ++d) sum += to_float(v[i * stride + d]) * 0.0f;
    if (!(sum == 0.0f)) return false;
  }
  return true;
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

  std::memset(buffers.queries, 0, size_t(tiles * kTile * head_dim) * 4);
  for (int64_t row = 0; row < task.rows; ++row)
    Ops::query(work.query<T>(task, row), head_dim, work.sign, queries + row / kTile * kTile * steps + row % kTile);
  TileWindows windows[kTaskRows / kTile];
  for (int64_t t = 0; t < tiles; ++t) {
    windows[t] = windows_of(work, task, t * kTile);
    const Partial state = partial.tile(t, head_dim);
    for (int i = 0; i < kTile; ++i) state.most[i] = kNothing, state.sum[i] = 0;
    std::memset(state.out, 0, size_t(kTile * head_dim) * 4);
  }

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
    const bool finite = !masked || block_finite(v + block * op.v_strides.row, op.v_strides.row, block_end - block, head_dim, seen);
    int64_t key_row, value_step;
    const Element* keys = Ops::keys(k + block * op.k_strides.row, op.k_strides.row, block_end - block, head_dim, buffers.keys, &key_row);
    const Element* values = Ops::values(v + block * op.v_strides.row, op.v_strides.row, block_end - block, head_dim, seen, buffers.values, &value_step);

    for (int64_t t = 0; t < tiles; ++t) {
      // Behind the committed rows only the keys that some row of the tile sees; from an even one, for pairs.
      int64_t first = block, last = block_end;
      if (block >= committed) {
        first = most(block, windows[t].all.begin), first -= (first - block) % 2;
        last = least(block_end, windows[t].all.end);
      } else {
        last = least(block_end, most(committed, windows[t].all.end));
      }
      if (first >= last) continue;
      const int64_t count = last - first, offset = first - block;
      const Partial state = partial.tile(t, head_dim);
      const bool narrow = task.rows - t * kTile <= kLanes;
      const Element* queries_of_tile = queries + t * kTile * steps;
      Floats keep[2];
      const auto run = [&](auto vectors) {
        constexpr int V = decltype(vectors)::value;
        multiply_rows<Kind, V>(count, keys + offset * key_row, key_row, 1, queries_of_tile, steps, buffers.scores, nullptr);
        softmax<V>(buffers.scores, first, count, committed, work.scale, windows[t], state, keep);
        if (!finite) {
          add_seen(v + first * op.v_strides.row, op.v_strides.row, count, head_dim, seen + offset, buffers.scores, V * kLanes, keep, state.out);
          return;
        }
        const Element* weights = Ops::weights(buffers.scores, count, V, buffers.weights);
        multiply_rows<Kind, V>(head_dim, values + offset / Kind::kWidth * value_step, 1, value_step, weights,
                               ceil_div(count, Kind::kWidth), state.out, keep);
      };
      if (narrow) run(Vectors<1>());
      else run(Vectors<2>());
    }
  }
}

// ---- tasks

template <class T>
void run_task(const Work& work, const Task& task, Partial partial, const Buffers& buffers) {
  if (task.rows <= kDirectRows && task.first == 0) return attend_direct<T>(work, task, partial);
#if defined(__AVX512BF16__)
  if constexpr (sizeof(T) == 2) {
    if (work.op.dtype == DType::bfloat16) return attend_tiles<BFloat16, Pairs>(work, task, partial, buffers);
  }
#endif
  attend_tiles<T, Singles>(work, task, partial, buffers);
}

// Merges the states of one task's key splits in order and writes the rows of `out`.
template <class T>
void finish(const Work& work, const Task& task, float* const* states, int64_t splits) {
  const Attend& op = work.op;
  for (int64_t row = 0; row < task.rows; ++row) {
    const int64_t tile = row / kTile, lane = row % kTile;
    float top = kNothing, sum = 0, share[64];
    for (int64_t s = 0; s < splits; ++s) {
      const Partial state = partial_at(states[s]).tile(tile, op.head_dim);
      if (state.sum[lane] > 0 || state.sum[lane] != state.sum[lane]) top = state.most[lane] > top ? state.most[lane] : top;
    }
    for (int64_t s = 0; s < splits; ++s) {
      const Partial state = partial_at(states[s]).tile(tile, op.head_dim);
      float factor[kLanes];
      store(factor, weight(broadcast((state.most[lane] - top) * work.scale)));
      share[s] = factor[0];
      sum += share[s] * state.sum[lane];
    }
    const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
    T* out = static_cast<T*>(op.out) + (work.token(task, row) * op.q_heads + work.query_head(task, row)) * op.head_dim;
    for (int64_t d = 0; d < op.head_dim; ++d) {
      float x = 0;
      for (int64_t s = 0; s < splits; ++s) x += share[s] * partial_at(states[s]).tile(tile, op.head_dim).out[d * kTile + lane];
      from_float(x * inverse, out + d);
    }
  }
}

// A sequence's share of the work.
struct Plan {
  int64_t tokens, rows, keys, row_parts, splits, split_keys, tasks;
};

Plan plan_of(const Attend& op, int64_t sequence) {
  Plan p{};
  p.tokens = op.sequence_offsets[sequence + 1] - op.sequence_offsets[sequence];
  p.keys = op.committed[sequence];
  for (int64_t t = op.sequence_offsets[sequence]; t < op.sequence_offsets[sequence + 1]; ++t)
    if (op.window_begin[t] < op.window_end[t]) p.keys = most(p.keys, op.committed[sequence] + op.window_end[t]);
  p.rows = p.tokens * (op.q_heads / op.kv_heads);
  p.row_parts = ceil_div(p.rows, kTaskRows);
  const int64_t parts = p.row_parts * op.kv_heads;
  p.splits = parts == 0 ? 0 : most(1, least(ceil_div(kSplitTasks, parts), least(p.keys / kSplitKeys, 64)));
  p.split_keys = p.splits == 0 ? 0 : ceil_div(ceil_div(p.keys, p.splits), kBlock) * kBlock;
  p.tasks = parts * p.splits;
  return p;
}

// Marks the provisional rows that some token of the sequence sees: seen[0 .. keys - committed).
void mark_seen(const Attend& op, int64_t sequence, int64_t keys, uint8_t* seen) {
  const int64_t count = keys - op.committed[sequence];
  std::memset(seen, 0, size_t(count));
  int64_t begin = 0, end = 0;  // the range marked last: windows mostly grow by a row
  for (int64_t t = op.sequence_offsets[sequence]; t < op.sequence_offsets[sequence + 1]; ++t) {
    const int64_t first = op.window_begin[t], last = op.window_end[t];
    if (first >= last) continue;
    const bool grows = begin <= first && first <= end;
    for (int64_t i = grows ? end : first; i < last; ++i) seen[i] = 1;
    begin = grows ? begin : first;
    end = grows ? most(end, last) : last;
  }
}

template <class T>
void attend_typed(const Attend& op) {
  int64_t tasks = 0, products = 0, provisional = 0, unsplit = 0;
  for (int64_t n = 0; n < op.sequences; ++n) {
    const Plan p = plan_of(op, n);
    tasks += p.tasks;
    unsplit += p.row_parts * op.kv_heads;
    products += p.rows * op.kv_heads * p.keys * op.head_dim * 2;
    provisional += p.keys - op.committed[n];
  }
  if (tasks == 0) return;
  const int threads = products < kParallelProducts || tasks == 1
                          ? 1
                          :
#ifdef _OPENMP
                          int(least(omp_get_max_threads(), tasks));
#else
                          1;
#endif
  const auto rounded = [](int64_t bytes) { return ceil_div(bytes, 64) * 64; };
  const int64_t state_bytes = rounded(kFloatsOfTask(op.head_dim) * 4), thread_bytes = rounded(kFloatsOfThread(op.head_dim) * 4);
  const int64_t list_bytes = rounded(tasks * int64_t(sizeof(Task))), seen_bytes = rounded(provisional);
  // One state a task where keys are split, else one a thread: an unsplit task is finished at once.
  const int64_t states = tasks == unsplit ? threads : tasks;
  auto* memory = static_cast<char*>(scratch(size_t(list_bytes + seen_bytes + states * state_bytes + threads * thread_bytes)));
  auto* list = reinterpret_cast<Task*>(memory);
  auto* seen = reinterpret_cast<uint8_t*>(memory + list_bytes);
  char* const state_base = memory + list_bytes + seen_bytes;
  char* const thread_base = state_base + states * state_bytes;

  int64_t count = 0, offset = 0;
  for (int64_t n = 0; n < op.sequences; ++n) {
    const Plan p = plan_of(op, n);
    if (p.tasks == 0) continue;
    mark_seen(op, n, p.keys, seen + offset);
    for (int64_t part = 0; part < p.row_parts; ++part)
      for (int64_t head = 0; head < op.kv_heads; ++head)
        for (int64_t s = 0; s < p.splits; ++s)
          list[count++] = {n, head, part * kTaskRows, least(kTaskRows, p.rows - part * kTaskRows), least(p.keys, s * p.split_keys),
                           least(p.keys, (s + 1) * p.split_keys), p.keys, offset};
    offset += p.keys - op.committed[n];
  }

  // Differences of scores are scaled, not scores: a rounded scale then costs nothing where weights are not tiny.
  const float exponent = op.scale * 1.44269504088896f, size = exponent < 0 ? -exponent : exponent;
  const Work work{op, op.q_heads / op.kv_heads, exponent < 0 ? -1.0f : 1.0f, size > 1e-37f ? size : 1e-37f, seen};
  const bool split = states == tasks && tasks != unsplit;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < tasks; ++i) {
#ifdef _OPENMP
    const int64_t thread = omp_get_thread_num();
#else
    const int64_t thread = 0;
#endif
    auto* state = reinterpret_cast<float*>(state_base + (split ? i : thread) * state_bytes);
    run_task<T>(work, list[i], partial_at(state), buffers_at(reinterpret_cast<float*>(thread_base + thread * thread_bytes), op.head_dim));
    if (!split) finish<T>(work, list[i], &state, 1);
  }
  if (!split) return;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < tasks; ++i) {
    if (list[i].begin != 0) continue;  // the first split of a task finishes all of them
    float* states_of_task[64];
    int64_t splits = 0;
    for (int64_t j = i; j < tasks && (j == i || list[j].begin != 0); ++j)
      states_of_task[splits++] = reinterpret_cast<float*>(state_base + j * state_bytes);
    finish<T>(work, list[i], states_of_task, splits);
  }
}

}  // namespace

void attend(const Attend& op) {
  with_type(op.dtype, [&](auto element) { attend_typed<decltype(element)>(op); });
}

}  // namespace refusion::cpu::REFUSION_ISA
