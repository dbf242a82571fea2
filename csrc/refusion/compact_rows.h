// compact_rows: ordered in-place gather of kept cache rows, every layer, key and value, every sequence, in one call.
#pragma once
#include "refusion/dtype.h"

namespace refusion {

struct CompactRows {
  void* cache;              // [layers, planes, sequences, kv_heads, capacity, head_dim], head_dim contiguous
  int64_t element_size;     // bytes; rows are moved, never interpreted
  int64_t layers, planes;   // planes: key and value, or 1 where the cache is one of them
  int64_t sequences, kv_heads, capacity, head_dim;
  int64_t layer_stride, plane_stride, sequence_stride, head_stride, row_stride;  // elements
  int64_t kept;                     // rows, of all sequences together
  const int32_t* sources;           // [kept] kept rows; strictly increasing within a sequence, never below their target
  const int32_t* source_offsets;    // [sequences + 1] range of each sequence in `sources`
  const int32_t* destination;       // [sequences] row where the first kept row goes; the others follow
};

}  // namespace refusion
