// attend without tensor cores: float32, and 16-bit arrays whose rows do not start at multiples of 16 bytes. The same
// packing of rows; a warp has four rows, a lane one key of a tile for the scores and every 32nd dimension for the sums.
#pragma once
#include "cuda/attend_work.cuh"

namespace refusion::cuda {

constexpr int kSimpleWarps = 4, kSimpleRows = 16, kSimpleKeys = 32, kSimpleThreads = 32 * kSimpleWarps;
constexpr int kRowsOfWarp = kSimpleRows / kSimpleWarps, kDimsOfLane = 8;  // head_dim 256

// budget: registers 128, shared 1024
template <class T>
__global__ void __launch_bounds__(kSimpleThreads) attend_simple(Attend op, AttendParts parts) {
  SHARED_ARRAY(Window, windows, [kSimpleRows]);
  SHARED_ARRAY(int, bounds, [2]);
  SMEM_CARVER(dynamic);
  const int dim = int(op.head_dim), pitch = dim + 1;  // odd: lanes read one column of 32 keys without bank conflicts
  float* queries = dynamic.take<float>(size_t(kSimpleRows) * size_t(dim));
  float* keys = dynamic.take<float>(size_t(kSimpleKeys) * size_t(pitch));
  float* values = dynamic.take<float>(size_t(kSimpleKeys) * size_t(dim));
  const int split = int(blockIdx.x % unsigned(parts.splits)), kv_head = int(blockIdx.y);
  const AttendWork work = find_work<kSimpleRows>(op, blockIdx.x / unsigned(parts.splits));
  const auto tiles = find_keys<kSimpleKeys, kSimpleRows, kSimpleThreads>(op, work, windows, bounds);
  const int begin = int(int64_t(tiles.count) * split / parts.splits);
  const int end = int(int64_t(tiles.count) * (split + 1) / parts.splits);
  for (int i = int(threadIdx.x); i < kSimpleRows * dim; i += kSimpleThreads) {
    const int row = i / dim, d = i % dim;
    const T* q = static_cast<const T*>(op.q);
    const bool valid = row < work.rows;
    queries[i] = valid
                     ? to_float(q[work.token(row) * op.q_token_stride + work.head(row, kv_head) * op.q_head_stride + d])
                     : 0.0f;
  }
  const T* k = static_cast<const T*>(op.k_cache) + work.sequence * op.k_strides.sequence + kv_head * op.k_strides.head;
  const T* v = static_cast<const T*>(op.v_cache) + work.sequence * op.v_strides.sequence + kv_head * op.v_strides.head;
  float sum[kRowsOfWarp][kDimsOfLane] = {}, most[kRowsOfWarp], total[kRowsOfWarp];
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    most[r] = -INFINITY;
    total[r] = 0.0f;
  }
  for (int tile = begin; tile < end; ++tile) {
    const int first_key = tiles.first_key(tile);
    __syncthreads();  // the last tile is done with
    for (int i = int(threadIdx.x); i < kSimpleKeys * dim; i += kSimpleThreads) {
      const int row = i / dim, d = i % dim, key = first_key + row;
      const bool seen = is_seen<kSimpleRows>(windows, key, work.committed);
      keys[row * pitch + d] = seen ? to_float(k[key * op.k_strides.row + d]) : 0.0f;
      values[row * dim + d] = seen ? to_float(v[key * op.v_strides.row + d]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
      const int row = warp_id() * kRowsOfWarp + r;
      float part_sums[8] = {};  // dim is a multiple of 8; short sums round less
      for (int d = 0; d < dim; d += 8)
#pragma unroll
        for (int i = 0; i < 8; ++i) part_sums[i] += queries[row * dim + d + i] * keys[lane_id() * pitch + d + i];
      float score = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) score += part_sums[i];
      const bool sees = row < work.rows && windows[row].sees(first_key + lane_id(), work.committed);
      score = sees ? score * op.scale * kLog2e : -INFINITY;
      float top = score;
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, lanes));
      top = fmaxf(top, most[r]);
      const float reference = top == -INFINITY ? 0.0f : top, factor = exp2f(most[r] - reference);
      const float weight = exp2f(score - reference);
      most[r] = top;
      total[r] = total[r] * factor + weight;
#pragma unroll
      for (int i = 0; i < kDimsOfLane; ++i) sum[r][i] *= factor;
      for (int key = 0; key < kSimpleKeys; ++key) {
        const float w = __shfl_sync(kAllLanes, weight, key);
#pragma unroll
        for (int i = 0; i < kDimsOfLane; ++i) {
          const int d = lane_id() + 32 * i;
          if (d < dim) sum[r][i] += w * values[key * dim + d];
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    const int row = warp_id() * kRowsOfWarp + r;
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) total[r] += __shfl_xor_sync(kAllLanes, total[r], lanes);
    if (row < work.rows) {
      const int64_t token_head = int64_t(work.token(row)) * op.q_heads + work.head(row, kv_head);
      const float inverse = total[r] > 0.0f ? 1.0f / total[r] : 0.0f;
      float* part = parts.splits > 1 ? parts.at(token_head, split) : nullptr;
      T* out = static_cast<T*>(op.out) + token_head * dim;
#pragma unroll
      for (int i = 0; i < kDimsOfLane; ++i) {
        const int d = lane_id() + 32 * i;
        if (d < dim && part != nullptr) part[d] = sum[r][i];
        if (d < dim && part == nullptr) out[d] = from_float<T>(sum[r][i] * inverse);
      }
      if (part != nullptr && lane_id() == 0) {
        part[dim] = most[r];
        part[dim + 1] = total[r];
      }
    }
  }
}

template <class T>
int launch_simple(const Attend& op, const Launch& where, int splits) {
  const int64_t slots = tile_slots<kSimpleRows>(op.tokens * (op.q_heads / op.kv_heads), op.sequences);
  const AttendParts parts = parts_of(op, where, splits);
  const size_t shared = size_t(kSimpleRows * op.head_dim + kSimpleKeys * (2 * op.head_dim + 1)) * sizeof(float) + 32;
  const int error = launch(attend_simple<T>, dim3(unsigned(slots * splits), unsigned(op.kv_heads)),
                           dim3(kSimpleThreads), shared, where.stream, op, parts);
  return error != cudaSuccess || splits == 1 ? error : launch_merge<T>(op, parts, where);
}

}  // namespace refusion::cuda
