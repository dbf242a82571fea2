// attend for up to four query rows: bound by reading the cache, so every key and value row is read once and nothing is
// packed. Lanes hold dimensions.
#pragma once
#include "attend_direct_pairs.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

constexpr int kDirectRows = 4;

template <int R>
struct DirectState {
  float most[R], sum[R];
  float out[R][kMostDims + kLanes];
};

// Scores of `count` <= kBlock keys for R rows: scores[r][key].
template <class T, int R>
inline void direct_scores(const float (*q)[kMostDims + kLanes], const T* k, int64_t stride, int64_t count,
                          int64_t head_dim, float (*scores)[kBlock]) {
  const int64_t whole = head_dim / kLanes * kLanes;
  for (int64_t first = 0; first < count; first += kLanes) {
    Floats sums[R][kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const T* row = k + (first + i < count ? first + i : count - 1) * stride;
      Floats sum[R];
      for (int r = 0; r < R; ++r) sum[r] = broadcast(0.0f);
      for (int64_t d = 0; d < whole; d += kLanes) {
        const Floats x = load(row + d);
        for (int r = 0; r < R; ++r) sum[r] = fma(x, load(q[r] + d), sum[r]);
      }
      if (whole < head_dim) {
        const Floats x = load_part(row + whole, head_dim - whole, 0.0f);
        for (int r = 0; r < R; ++r) sum[r] = fma(x, load(q[r] + whole), sum[r]);
      }
      for (int r = 0; r < R; ++r) sums[r][i] = sum[r];
    }
    for (int r = 0; r < R; ++r) store(scores[r] + first, sum_lanes(sums[r]));
  }
}

// out[r] += weights[r][key] * v[key], C vectors of dimensions at a time.
template <class T, int R, int C>
inline int64_t direct_values(const T* v, int64_t stride, int64_t count, int64_t head_dim, int64_t d,
                             const float (*weights)[kBlock], float (*out)[kMostDims + kLanes]) {
  for (; d + C * kLanes <= head_dim; d += C * kLanes) {
    Floats sum[R][C];
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) sum[r][c] = load(out[r] + d + c * kLanes);
    for (int64_t key = 0; key < count; ++key) {
      Floats x[C];
      for (int c = 0; c < C; ++c) x[c] = load(v + key * stride + d + c * kLanes);
      for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) sum[r][c] = fma(broadcast(weights[r][key]), x[c], sum[r][c]);
    }
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) store(out[r] + d + c * kLanes, sum[r][c]);
  }
  return d;
}

// How the scores of a block are taken and its values added, by element type. Queries are kept ready for it.
template <class T, int R>
struct DirectProducts {
  float q[R][kMostDims + kLanes] = {};

  void take_query(int r, const float* from, int64_t head_dim) { std::memcpy(q[r], from, size_t(head_dim) * 4); }

  void score(const T* k, int64_t stride, int64_t count, int64_t head_dim, float (*scores)[kBlock]) const {
    direct_scores<T, R>(q, k, stride, count, head_dim, scores);
  }

  static void add(const T* v, int64_t stride, int64_t count, int64_t head_dim, const float (*weights)[kBlock],
                  float (*out)[kMostDims + kLanes]) {
    constexpr int C = kLanes == 16 ? (R == 4 ? 4 : 8) : (R == 4 ? 2 : 4);
    int64_t d = direct_values<T, R, C>(v, stride, count, head_dim, 0, weights, out);
    d = direct_values<T, R, 1>(v, stride, count, head_dim, d, weights, out);
    for (int64_t i = 0; d < head_dim && i < count; ++i) {
      const Floats x = load_part(v + i * stride + d, head_dim - d, 0.0f);
      for (int r = 0; r < R; ++r) store(out[r] + d, fma(broadcast(weights[r][i]), x, load(out[r] + d)));
    }
  }
};

#if defined(__AVX512BF16__)
template <int R>
struct DirectProducts<BFloat16, R> {
  BFloat16 q[R][kMostDims] = {};

  void take_query(int r, const float* from, int64_t head_dim) {
    for (int64_t d = 0; d < head_dim; ++d) from_float(from[d], q[r] + d);  // exact: they came as bfloat16
  }

  void score(const BFloat16* k, int64_t stride, int64_t count, int64_t head_dim, float (*scores)[kBlock]) const {
    if (head_dim == 128) pair_scores<R, 4>(q, k, stride, count, head_dim, scores);
    else if (head_dim == 64) pair_scores<R, 2>(q, k, stride, count, head_dim, scores);
    else pair_scores<R, 0>(q, k, stride, count, head_dim, scores);
  }

  static void add(const BFloat16* v, int64_t stride, int64_t count, int64_t head_dim, const float (*weights)[kBlock],
                  float (*out)[kMostDims + kLanes]) {
    constexpr int C = R == 4 ? 4 : 8;
    BFloat16 rounded[R][kBlock];
    for (int r = 0; r < R; ++r)
      for (int64_t i = 0; i < count; i += kLanes) store(rounded[r] + i, load(weights[r] + i));
    int64_t d = 0;
    for (; d + C * kLanes <= head_dim; d += C * kLanes)
      pair_values<R, C>(v, stride, count, head_dim, d, rounded, out);
    for (; d < head_dim; d += 2 * kLanes) pair_values<R, 2>(v, stride, count, head_dim, d, rounded, out);
  }
};
#endif

// Adds keys [begin, end), all of which all R rows see.
template <class T, int R>
void direct_keys(const Work& work, const T* k, const T* v, const DirectProducts<T, R>& products, int64_t begin,
                 int64_t end, DirectState<R>& state) {
  const int64_t head_dim = work.op.head_dim, k_row = work.op.k_strides.row, v_row = work.op.v_strides.row;
  float scores[R][kBlock];
  for (int64_t key = begin; key < end; key += kBlock) {
    const int64_t count = key + kBlock < end ? kBlock : end - key;
    products.score(k + key * k_row, k_row, count, head_dim, scores);
    for (int r = 0; r < R; ++r) {
      for (int64_t i = count; i % kLanes != 0; ++i) scores[r][i] = -__builtin_inff();
      Floats top = broadcast(state.most[r]);
      for (int64_t i = 0; i < count; i += kLanes) top = at_least(load(scores[r] + i), top);
      const float most = reduce_max(top);
      float keep[kLanes];
      store(keep, weight(broadcast((state.most[r] - most) * work.scale)));
      Floats sum = broadcast(0.0f);
      for (int64_t i = 0; i < count; i += kLanes) {
        const Floats p = weight((load(scores[r] + i) - broadcast(most)) * broadcast(work.scale));
        store(scores[r] + i, p);
        sum = sum + p;
      }
      state.most[r] = most;
      state.sum[r] = state.sum[r] * keep[0] + reduce_add(sum);
      for (int64_t d = 0; d < head_dim; d += kLanes)
        store(state.out[r] + d, load(state.out[r] + d) * broadcast(keep[0]));
    }
    products.add(v + key * v_row, v_row, count, head_dim, scores, state.out);
  }
}

// Rows [0, rows) of the task, rows <= R: the committed keys together, each row's window on its own.
template <class T, int R>
void direct_rows(const Work& work, const Task& task, Partial partial) {
  const Attend& op = work.op;
  const T* k = work.cache<T>(op.k_cache, op.k_strides, task);
  const T* v = work.cache<T>(op.v_cache, op.v_strides, task);
  float q[R][kMostDims];
  DirectProducts<T, R> products;
  DirectState<R> state;
  for (int r = 0; r < R; ++r) {
    std::memset(state.out[r], 0, sizeof state.out[r]);
    if (r < task.rows) {
      work.read_query<T>(task, r, q[r]);
      products.take_query(r, q[r], op.head_dim);
    }
    state.most[r] = kNothing;
    state.sum[r] = 0;
  }
  const int64_t committed = op.committed[task.sequence];
  direct_keys<T, R>(work, k, v, products, task.begin, least(task.end, committed), state);
  for (int r = 0; r < R; ++r) {
    if (r < task.rows) {
      const Range window = work.window(task, r);
      DirectState<1> own;
      own.most[0] = state.most[r];
      own.sum[0] = state.sum[r];
      std::memcpy(own.out[0], state.out[r], sizeof own.out[0]);
      DirectProducts<T, 1> own_products;
      own_products.take_query(0, q[r], op.head_dim);
      direct_keys<T, 1>(work, k, v, own_products, most(task.begin, window.begin), least(task.end, window.end), own);
      partial.most[r] = own.most[0];
      partial.sum[r] = own.sum[0];
      for (int64_t d = 0; d < op.head_dim; ++d) partial.out[d * kTile + r] = own.out[0][d];
    }
  }
}

template <class T>
void attend_direct(const Work& work, const Task& task, Partial partial) {
  if (task.rows == 1) direct_rows<T, 1>(work, task, partial);
  else if (task.rows == 2) direct_rows<T, 2>(work, task, partial);
  else direct_rows<T, 4>(work, task, partial);
}

}  // namespace
}  // namespace refusion::cpu::REFUSION_ISA
