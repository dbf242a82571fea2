// What the kernels of attend share: which rows a block works on, which keys its rows see, how parts are merged.
//
// The query heads of one KV head are packed: row r of a sequence is token r / group, head r % group of the group. So a
// key is read once for all queries, slots and heads that share it. A tile of rows belongs to one sequence. The host
// knows neither the lengths nor what is committed, so it launches as many tiles as there can be, and blocks find their
// own.
#pragma once
#include "cuda/launchers.h"
#include "cuda/portable.cuh"

namespace refusion::cuda {

// Tiles are numbered with gaps: those of sequence n start at rows before it / kRows + n, which no lengths can overtake.
template <int kRows>
__host__ __device__ inline int64_t tile_slots(int64_t rows, int64_t sequences) {
  return rows / kRows + sequences;
}

struct AttendWork {
  int sequence;
  int first_token;  // of the sequence
  int first_row;    // of the tile, in the sequence
  int rows;         // of the tile; 0: nothing to do
  int committed;
  int group;  // query heads of a KV head

  __device__ __forceinline__ int token(int row) const { return first_token + (first_row + row) / group; }
  __device__ __forceinline__ int head(int row, int kv_head) const {
    return kv_head * group + (first_row + row) % group;
  }
};

template <int kRows>
__device__ __forceinline__ AttendWork find_work(const Attend& op, int64_t slot) {
  const int group = int(op.q_heads / op.kv_heads), last = int(op.sequences) - 1;
  const auto begin = [&](int n) { return max(0, min(op.sequence_offsets[n], int(op.tokens))); };
  int low = 0, high = last;  // the last sequence whose tiles start at or before the slot
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (int64_t(begin(middle)) * group / kRows + middle <= slot)
      low = middle;
    else
      high = middle - 1;
  }
  AttendWork work;
  work.sequence = low;
  work.first_token = begin(low);
  // Negative only where offsets descend.
  work.first_row = max(0, int(slot - int64_t(work.first_token) * group / kRows - low) * kRows);
  work.rows = max(0, min((begin(low + 1) - work.first_token) * group - work.first_row, kRows));
  work.committed = max(0, min(op.committed[low], int(op.capacity)));
  work.group = group;
  return work;
}

// The provisional rows that a query sees, as cache rows; begin == end: none.
struct Window {
  int begin, end;
  __device__ __forceinline__ bool sees(int key, int committed) const {
    return key < committed || (key >= begin && key < end);
  }
};

__device__ __forceinline__ Window window_of(const Attend& op, const AttendWork& work, int row) {
  if (row >= work.rows) return {work.committed, work.committed};
  const int token = work.token(row), room = int(op.capacity) - work.committed;
  const int begin = max(0, min(op.window_begin[token], room)), end = max(begin, min(op.window_end[token], room));
  return {work.committed + begin, work.committed + end};
}

// Keys in tiles of kKeys: those of the committed rows, then those of the windows of the block's rows.
template <int kKeys>
struct KeyTiles {
  int prefix;        // tiles that hold committed rows
  int window_first;  // first tile of the windows that is not one of them
  int count;

  __device__ __forceinline__ int first_key(int tile) const {
    return (tile < prefix ? tile : window_first + tile - prefix) * kKeys;
  }
};

// Reads the windows of all rows into shared memory and finds the tiles they need. All threads of the block call this.
template <int kKeys, int kRows, int kThreads>
__device__ __forceinline__ KeyTiles<kKeys> find_keys(const Attend& op, const AttendWork& work, Window* windows,
                                                     int* bounds) {
  static_assert(kThreads >= kRows && kThreads % 32 == 0, "a thread a row");
  if (threadIdx.x == 0) {
    bounds[0] = int(op.capacity);
    bounds[1] = 0;
  }
  __syncthreads();
  if (int(threadIdx.x) < kRows) {
    const Window window = window_of(op, work, int(threadIdx.x));
    windows[threadIdx.x] = window;
    if (window.begin < window.end) {
      atomicMin(bounds, window.begin);
      atomicMax(bounds + 1, window.end);
    }
  }
  __syncthreads();
  KeyTiles<kKeys> tiles;
  tiles.prefix = ceil_div(work.committed, kKeys);
  tiles.window_first = max(tiles.prefix, bounds[0] / kKeys);
  tiles.count = tiles.prefix + max(0, ceil_div(bounds[1], kKeys) - tiles.window_first);
  if (work.rows == 0) tiles.count = 0;
  return tiles;
}

// Whether any row of the block sees the key. Values of other rows must not be read: they may be NaN, and 0 * NaN is
// NaN.
template <int kRows>
__device__ __forceinline__ bool is_seen(const Window* windows, int key, int committed) {
  bool seen = key < committed;
  for (int row = 0; row < kRows && !seen; ++row) seen = key >= windows[row].begin && key < windows[row].end;
  return seen;
}

// Parts of a row's result, in the workspace: for each token, head and split the sum over its keys, then greatest score
// (times log2 e) and sum of the weights.
struct AttendParts {
  float* values;
  int splits;
  int64_t width;  // head_dim + 2

  __device__ __forceinline__ float* at(int64_t token_head, int split) const {
    return values + (token_head * splits + split) * width;
  }
};

inline AttendParts parts_of(const Attend& op, const Launch& where, int splits) {
  return {static_cast<float*>(where.workspace), splits, op.head_dim + 2};
}

inline size_t parts_bytes(const Attend& op, int splits) {
  return splits == 1 ? 0 : size_t(op.tokens * op.q_heads * splits * (op.head_dim + 2)) * sizeof(float);
}

constexpr int kMostSplits = 32;
constexpr int64_t kLeastSplit = 256;  // keys: below, a part costs more in merging than it saves

// How many blocks share the keys of a tile: as many as fill the device about twice.
inline int split_keys(const Attend& op, int64_t slots, int multiprocessors) {
  const int64_t blocks = slots * op.kv_heads, wanted = ceil_div<int64_t>(2 * int64_t(multiprocessors), blocks);
  const int64_t most = op.capacity / kLeastSplit;
  const int64_t splits = wanted < most ? wanted : most;
  return int(splits < 1 ? 1 : splits > kMostSplits ? kMostSplits : splits);
}

// Merges the parts of each token and head, one warp each, in the order of the splits.
// budget: registers 80, shared 0
template <class T>
__global__ void __launch_bounds__(128) merge_attended(Attend op, AttendParts parts) {
  const int64_t item = int64_t(blockIdx.x) * 4 + warp_id();
  const bool present = item < op.tokens * op.q_heads;
  float most = -INFINITY;
  for (int split = 0; present && split < parts.splits; ++split) most = fmaxf(most, parts.at(item, split)[op.head_dim]);
  float total = 0.0f;
  for (int split = 0; present && split < parts.splits; ++split) {
    const float* part = parts.at(item, split) + op.head_dim;
    if (part[1] > 0.0f) total += part[1] * exp2f(part[0] - most);
  }
  const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
  T* out = static_cast<T*>(op.out) + item * op.head_dim;
  for (int d = lane_id(); present && d < op.head_dim; d += 32) {
    float sum = 0.0f;
    for (int split = 0; split < parts.splits; ++split) {
      const float* part = parts.at(item, split);
      if (part[op.head_dim + 1] > 0.0f) sum += part[d] * exp2f(part[op.head_dim] - most);
    }
    out[d] = from_float<T>(sum * inverse);
  }
}

template <class T>
int launch_merge(const Attend& op, const AttendParts& parts, const Launch& where) {
  const unsigned blocks = unsigned(ceil_div<int64_t>(op.tokens * op.q_heads, 4));
  return launch(merge_attended<T>, dim3(blocks), dim3(128), 0, where.stream, op, parts);
}

}  // namespace refusion::cuda
