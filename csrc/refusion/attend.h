// attend: every query sees all committed rows of its sequence and one window of provisional rows.
#pragma once
#include "refusion/rope_append.h"

namespace refusion {

struct Attend {
  const void* q;            // [tokens, q_heads, head_dim], head_dim contiguous
  DType dtype;              // of q, caches and out
  int64_t tokens, q_heads, kv_heads, head_dim;
  int64_t q_token_stride, q_head_stride;
  const void* k_cache;      // [sequences, kv_heads, capacity, head_dim]
  const void* v_cache;
  CacheStrides k_strides, v_strides;
  int64_t sequences, capacity;
  const int32_t* sequence_offsets;  // [sequences + 1] token range of each sequence
  const int32_t* committed;         // [sequences] rows 0 .. committed are seen by every token of the sequence
  const int32_t* window_begin;      // [tokens] provisional rows [begin, end), from `committed` on; begin >= end: none
  const int32_t* window_end;
  float scale;
  void* out;                // [tokens, q_heads, head_dim] contiguous; zeros for a query that sees nothing
};

}  // namespace refusion
