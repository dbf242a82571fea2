// The shapes of blocks that are compiled for a head dimension, each dimension in a file of its own.
#pragma once
#include "cuda/attend_tiles.cuh"

namespace refusion::cuda {

// At 256 a tile of 64 keys would leave no room for a second one on sm_120, and 16 keys a warp are the least.
template <int kDim>
using ManyRows = AttendShape<kDim, 4, 1, kDim == 256 ? 32 : 64>;
template <int kDim>
using FewRows = AttendShape<kDim, 1, kDim == 256 ? 2 : 4, kDim == 256 ? 32 : 64>;

constexpr int64_t kFewRows = 16;  // of a sequence on average; up to so many, FewRows

inline bool has_few_rows(const Attend& op) { return op.tokens * (op.q_heads / op.kv_heads) <= kFewRows * op.sequences; }

template <int kDim>
int attend_dim(const Attend& op, const Launch& where, int splits) {
  if (op.dtype == DType::bfloat16)
    return has_few_rows(op) ? launch_tiles<__nv_bfloat16, FewRows<kDim>>(op, where, splits)
                            : launch_tiles<__nv_bfloat16, ManyRows<kDim>>(op, where, splits);
  return has_few_rows(op) ? launch_tiles<__half, FewRows<kDim>>(op, where, splits)
                          : launch_tiles<__half, ManyRows<kDim>>(op, where, splits);
}

}  // namespace refusion::cuda
