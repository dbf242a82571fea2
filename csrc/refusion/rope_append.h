// rope_append: packed qkv -> normed and rotated q, and k, v written to their cache rows, in one pass.
#pragma once
#include "refusion/dtype.h"

namespace refusion {

// Keys or values of one layer: [sequences, kv_heads, capacity, head_dim], last axis contiguous; strides in elements.
struct CacheStrides {
  int64_t sequence, head, row;
};

struct RopeAppend {
  const void* qkv;          // [tokens, (q_heads + 2 * kv_heads) * head_dim]: q heads, k heads, v heads
  DType dtype;              // of qkv, norms, caches and q
  int64_t tokens, q_heads, kv_heads, head_dim;
  int64_t qkv_stride;       // elements between tokens
  const void* q_norm;       // [head_dim] RMS norm weight, or null: no norm (both or neither)
  const void* k_norm;
  float norm_epsilon;
  const float* cosine;      // [positions, head_dim / 2]; dimension i turns with i + head_dim / 2 (Hugging Face layout)
  const float* sine;
  int64_t positions;
  const int32_t* position_ids;      // [tokens] original positions
  const int32_t* rows;              // [tokens] cache row of its sequence
  const int32_t* sequence_offsets;  // [sequences + 1] token range of each sequence
  int64_t sequences, capacity;
  void* k_cache;
  void* v_cache;
  CacheStrides k_strides, v_strides;
  void* q;                  // [tokens, q_heads, head_dim] contiguous
};

}  // namespace refusion
