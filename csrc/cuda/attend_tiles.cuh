// attend on tensor cores, for bfloat16 and half: mma.m16n8k16, two stages of cp.async, scores in registers.
//
// A block has kRowWarps * kKeyWarps warps. Each holds 16 rows and works on its share of the keys of a tile: (4, 1) for
// many rows; (1, 4) for few, where one warp alone could not multiply as fast as keys arrive.
#pragma once
#include "cuda/attend_work.cuh"

namespace refusion::cuda {

template <int kDim_, int kRowWarps_, int kKeyWarps_, int kKeys_>
struct AttendShape {
  static constexpr int kDim = kDim_;  // head_dim, or the next greater one that is compiled
  static constexpr int kRowWarps = kRowWarps_, kKeyWarps = kKeyWarps_;
  static constexpr int kKeys = kKeys_;  // of a tile
  static constexpr int kRows = 16 * kRowWarps, kWarpKeys = kKeys / kKeyWarps;
  static constexpr int kWarps = kRowWarps * kKeyWarps, kThreads = 32 * kWarps;
  static constexpr int kChunks = kDim / 8;  // of 16 bytes in a row
  // Rows of shared memory: chunks are swapped so that eight rows of one column lie in different banks. Where their
  // number is no power of two, an odd distance does the same.
  static constexpr bool kSwizzled = (kChunks & (kChunks - 1)) == 0;
  static constexpr int kRowChunks = kSwizzled ? kChunks : kChunks | 1;
  static constexpr int kTileElements = kKeys * kRowChunks * 8, kRowElements = kRows * kRowChunks * 8;
  static constexpr size_t kShared = size_t(4 * kTileElements + kRowElements) * 2;
  static constexpr int kHeld = kDim / 2 + 4;  // floats of a lane's result
  static_assert(kWarpKeys % 16 == 0, "an mma takes 16 keys");
  static_assert(kShared <= 99 << 10, "shared memory of a block on sm_86, sm_89 and sm_120");
  static_assert(size_t(kWarps) * 32 * kHeld * 4 <= size_t(4 * kTileElements) * 2 + size_t(kRowElements) * 2,
                "warps that share rows merge through the tiles");

  // Place of a chunk, in elements.
  static __device__ __forceinline__ int place(int row, int chunk) {
    return (row * kRowChunks + (kSwizzled ? chunk ^ (row & 7) : chunk)) * 8;
  }
};

// 16 rows of results, as the fragments of an mma lay them out: lane 4 * g + t has rows g and g + 8.
template <class Shape>
struct Attended {
  float sum[Shape::kDim / 8][4];
  float most[2], total[2];  // of rows g and g + 8: greatest score times log2 e, sum of weights
};

// Copies the rows' queries to shared memory.
template <class T, class Shape>
__device__ __forceinline__ void load_queries(const Attend& op, const AttendWork& work, int kv_head, T* to) {
  for (int i = int(threadIdx.x); i < Shape::kRows * Shape::kChunks; i += Shape::kThreads) {
    const int row = i / Shape::kChunks, chunk = i % Shape::kChunks;
    const bool valid = row < work.rows && chunk * 8 < op.head_dim;
    const T* from = static_cast<const T*>(op.q);
    if (valid) from += work.token(row) * op.q_token_stride + work.head(row, kv_head) * op.q_head_stride + chunk * 8;
    cp_async_16(to + Shape::place(row, chunk), from, valid);
  }
}

// Copies a tile of keys and values; rows that nobody sees become zeros.
template <class T, class Shape>
__device__ __forceinline__ void load_tile(const Attend& op, const AttendWork& work, int kv_head, int first_key,
                                          const unsigned char* seen, T* keys, T* values) {
  const T* k = static_cast<const T*>(op.k_cache) + work.sequence * op.k_strides.sequence + kv_head * op.k_strides.head;
  const T* v = static_cast<const T*>(op.v_cache) + work.sequence * op.v_strides.sequence + kv_head * op.v_strides.head;
#pragma unroll 4  // addresses are what fills the registers
  for (int i = int(threadIdx.x); i < Shape::kKeys * Shape::kChunks; i += Shape::kThreads) {
    const int row = i / Shape::kChunks, chunk = i % Shape::kChunks;
    const bool valid = seen[row] != 0 && chunk * 8 < op.head_dim;
    const int64_t key = valid ? first_key + row : 0, column = valid ? chunk * 8 : 0;
    cp_async_16(keys + Shape::place(row, chunk), k + key * op.k_strides.row + column, valid);
    cp_async_16(values + Shape::place(row, chunk), v + key * op.v_strides.row + column, valid);
  }
}

// Scores of the warp's 16 rows and keys, not scaled.
template <class T, class Shape>
__device__ __forceinline__ void multiply_keys(const T* queries, const T* keys, int first_row, int first_key,
                                              float (&score)[Shape::kWarpKeys / 8][4]) {
  const int lane = lane_id();
#pragma unroll
  for (int n = 0; n < Shape::kWarpKeys / 8; ++n) score[n][0] = score[n][1] = score[n][2] = score[n][3] = 0.0f;
#pragma unroll
  for (int step = 0; step < Shape::kDim / 16; ++step) {
    uint32_t a[4];
    ldmatrix_x4(a, queries + Shape::place(first_row + (lane & 15), 2 * step + (lane >> 4)));
#pragma unroll
    for (int n = 0; n < Shape::kWarpKeys / 16; ++n) {
      uint32_t b[4];  // keys 0 .. 8 of 16 dimensions, then keys 8 .. 16
      ldmatrix_x4(b,
                  keys + Shape::place(first_key + 16 * n + (lane >> 4) * 8 + (lane & 7), 2 * step + (lane >> 3 & 1)));
      multiply_pair<T>(score[2 * n], score[2 * n + 1], a, b);
    }
  }
}

// Turns scores into weights and moves what was summed so far to the new maximum.
template <class Shape>
__device__ __forceinline__ void weigh(float (&score)[Shape::kWarpKeys / 8][4], Attended<Shape>& result) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = result.most[half];
#pragma unroll
    for (int n = 0; n < Shape::kWarpKeys / 8; ++n)
      most = fmaxf(most, fmaxf(score[n][2 * half], score[n][2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
    const float reference = most == -INFINITY ? 0.0f : most;  // nothing seen yet: no infinity minus infinity
    const float factor = exp2f(result.most[half] - reference);
    float total = 0.0f;
#pragma unroll
    for (int n = 0; n < Shape::kWarpKeys / 8; ++n)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        score[n][i] = exp2f(score[n][i] - reference);
        total += score[n][i];
      }
    result.most[half] = most;
    result.total[half] = result.total[half] * factor + total;
#pragma unroll
    for (int d = 0; d < Shape::kDim / 8; ++d) {
      result.sum[d][2 * half] *= factor;
      result.sum[d][2 * half + 1] *= factor;
    }
  }
}

// Adds the weighted values.
template <class T, class Shape>
__device__ __forceinline__ void multiply_values(const float (&weight)[Shape::kWarpKeys / 8][4], const T* values,
                                                int first_key, Attended<Shape>& result) {
  const int lane = lane_id();
#pragma unroll
  for (int k = 0; k < Shape::kWarpKeys / 16; ++k) {
    const float (&low)[4] = weight[2 * k], (&high)[4] = weight[2 * k + 1];
    const uint32_t a[4] = {pack_pair<T>(low[0], low[1]), pack_pair<T>(low[2], low[3]), pack_pair<T>(high[0], high[1]),
                           pack_pair<T>(high[2], high[3])};
#pragma unroll
    for (int d = 0; d < Shape::kDim / 16; ++d) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, values + Shape::place(first_key + 16 * k + (lane & 15), 2 * d + (lane >> 4)));
      multiply_pair<T>(result.sum[2 * d], result.sum[2 * d + 1], a, b);
    }
  }
}

template <class Shape>
__device__ __forceinline__ void merge_results(Attended<Shape>& mine, const float* other) {  // a lane's floats, 32 apart
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float their_most = other[32 * (Shape::kDim / 2 + half)],
                their_total = other[32 * (Shape::kDim / 2 + 2 + half)];
    const float most = fmaxf(mine.most[half], their_most), reference = most == -INFINITY ? 0.0f : most;
    const float factor = exp2f(mine.most[half] - reference), their_factor = exp2f(their_most - reference);
    mine.most[half] = most;
    mine.total[half] = mine.total[half] * factor + their_total * their_factor;
#pragma unroll
    for (int d = 0; d < Shape::kDim / 8; ++d)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i)
        mine.sum[d][i] = mine.sum[d][i] * factor + other[32 * (4 * d + i)] * their_factor;
  }
}

// Writes rows that are finished, or their part.
template <class T, class Shape>
__device__ __forceinline__ void store_results(const Attend& op, const AttendWork& work, int kv_head, int first_row,
                                              const Attended<Shape>& result, const AttendParts& parts, int split) {
  const int turn = lane_id() & 3;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + (lane_id() >> 2) + 8 * half;
    if (row < work.rows) {
      const int64_t token_head = int64_t(work.token(row)) * op.q_heads + work.head(row, kv_head);
      const float inverse = result.total[half] > 0.0f ? 1.0f / result.total[half] : 0.0f;
      float* part = parts.splits > 1 ? parts.at(token_head, split) : nullptr;
      T* out = static_cast<T*>(op.out) + token_head * op.head_dim;
#pragma unroll
      for (int d = 0; d < Shape::kDim / 8; ++d) {
        const int column = 8 * d + 2 * turn;
        const float left = result.sum[d][2 * half], right = result.sum[d][2 * half + 1];
        if (column < op.head_dim) {
          if (part != nullptr) {
            part[column] = left;
            part[column + 1] = right;
          } else {
            out[column] = from_float<T>(left * inverse);
            out[column + 1] = from_float<T>(right * inverse);
          }
        }
      }
      if (part != nullptr && turn == 0) {
        part[op.head_dim] = result.most[half];
        part[op.head_dim + 1] = result.total[half];
      }
    }
  }
}

// budget: registers 255, shared 2048
template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads) attend_tiles(Attend op, AttendParts parts) {
  SHARED_ARRAY(Window, windows, [Shape::kRows]);
  SHARED_ARRAY(int, bounds, [2]);
  SHARED_ARRAY(unsigned char, seen, [2][Shape::kKeys]);
  SMEM_CARVER(dynamic);
  T* stage = dynamic.take<T>(size_t(4 * Shape::kTileElements + Shape::kRowElements));
  T* queries = stage + 4 * Shape::kTileElements;
  const int split = int(blockIdx.x % unsigned(parts.splits)), kv_head = int(blockIdx.y);
  const AttendWork work = find_work<Shape::kRows>(op, blockIdx.x / unsigned(parts.splits));
  const auto tiles = find_keys<Shape::kKeys, Shape::kRows, Shape::kThreads>(op, work, windows, bounds);
  const int begin = int(int64_t(tiles.count) * split / parts.splits);
  const int end = int(int64_t(tiles.count) * (split + 1) / parts.splits);
  const auto look = [&](int tile) {  // which keys of the tile anybody sees
    if (tile < end)
      for (int i = int(threadIdx.x); i < Shape::kKeys; i += Shape::kThreads)
        seen[tile & 1][i] = is_seen<Shape::kRows>(windows, tiles.first_key(tile) + i, work.committed);
  };
  const auto load = [&](int tile) {
    T* keys = stage + (tile & 1) * 2 * Shape::kTileElements;
    if (tile < end)
      load_tile<T, Shape>(op, work, kv_head, tiles.first_key(tile), seen[tile & 1], keys, keys + Shape::kTileElements);
    cp_async_commit();
  };

  const int warp_row = warp_id() % Shape::kRowWarps * 16, warp_key = warp_id() / Shape::kRowWarps * Shape::kWarpKeys;
  const int my_rows[2] = {warp_row + (lane_id() >> 2), warp_row + (lane_id() >> 2) + 8};
  const Window my_windows[2] = {windows[my_rows[0]], windows[my_rows[1]]};
  const float scale = op.scale * kLog2e;
  Attended<Shape> result;
#pragma unroll
  for (int d = 0; d < Shape::kDim / 8; ++d)
    result.sum[d][0] = result.sum[d][1] = result.sum[d][2] = result.sum[d][3] = 0;
  result.most[0] = result.most[1] = -INFINITY;
  result.total[0] = result.total[1] = 0.0f;

  look(begin);
  __syncthreads();
  load_queries<T, Shape>(op, work, kv_head, queries);
  load(begin);
  for (int tile = begin; tile < end; ++tile) {
    look(tile + 1);
    cp_async_wait<0>();
    __syncthreads();  // this tile has arrived for everybody, and nobody reads the other stage any more
    load(tile + 1);
    const T* keys = stage + (tile & 1) * 2 * Shape::kTileElements;
    const int first_key = tiles.first_key(tile) + warp_key;
    float score[Shape::kWarpKeys / 8][4];
    multiply_keys<T, Shape>(queries, keys, warp_row, warp_key, score);
    const bool all_committed = first_key + Shape::kWarpKeys <= work.committed;
#pragma unroll
    for (int n = 0; n < Shape::kWarpKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first_key + 8 * n + 2 * (lane_id() & 3) + (i & 1);
        const bool sees = all_committed || my_windows[i >> 1].sees(key, work.committed);
        score[n][i] = sees ? score[n][i] * scale : -INFINITY;
      }
    weigh<Shape>(score, result);
    multiply_values<T, Shape>(score, keys + Shape::kTileElements, warp_key, result);
  }
  cp_async_wait<0>();
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // each lane has summed its own columns
    result.total[half] += __shfl_xor_sync(kAllLanes, result.total[half], 1);
    result.total[half] += __shfl_xor_sync(kAllLanes, result.total[half], 2);
  }
  if constexpr (Shape::kKeyWarps > 1) {
    float* held = reinterpret_cast<float*>(stage) + warp_id() * 32 * Shape::kHeld + lane_id();
    __syncthreads();  // nobody reads tiles any more
#pragma unroll
    for (int d = 0; d < Shape::kDim / 8; ++d)
#pragma unroll
      for (int i = 0; i < 4; ++i) held[32 * (4 * d + i)] = result.sum[d][i];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      held[32 * (Shape::kDim / 2 + half)] = result.most[half];
      held[32 * (Shape::kDim / 2 + 2 + half)] = result.total[half];
    }
    __syncthreads();
    if (warp_id() == 0)
      for (int warp = 1; warp < Shape::kWarps; ++warp) merge_results<Shape>(result, held + warp * 32 * Shape::kHeld);
  }
  if (warp_id() < Shape::kRowWarps) store_results<T, Shape>(op, work, kv_head, warp_row, result, parts, split);
}

template <class T, class Shape>
int launch_tiles(const Attend& op, const Launch& where, int splits) {
  const int64_t slots = tile_slots<Shape::kRows>(op.tokens * (op.q_heads / op.kv_heads), op.sequences);
  const AttendParts parts = parts_of(op, where, splits);
  const int error = launch(attend_tiles<T, Shape>, dim3(unsigned(slots * splits), unsigned(op.kv_heads)),
                           dim3(Shape::kThreads), Shape::kShared, where.stream, op, parts);
  return error != cudaSuccess || splits == 1 ? error : launch_merge<T>(op, parts, where);
}

}  // namespace refusion::cuda
