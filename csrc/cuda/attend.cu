// Chooses the kernel of attend for a call.
#include "cuda/attend_shapes.cuh"
#include "cuda/attend_simple.cuh"

namespace refusion::cuda {

extern template int attend_dim<64>(const Attend&, const Launch&, int);
extern template int attend_dim<96>(const Attend&, const Launch&, int);
extern template int attend_dim<128>(const Attend&, const Launch&, int);
extern template int attend_dim<256>(const Attend&, const Launch&, int);

namespace {

// Whether every row can be copied in units of 16 bytes.
bool in_vectors(const Attend& op) {
  bool aligned = op.dtype != DType::float32;
  for (const void* p : {op.q, op.k_cache, op.v_cache}) aligned = aligned && reinterpret_cast<uintptr_t>(p) % 16 == 0;
  const int64_t strides[] = {op.q_token_stride, op.q_head_stride,      op.k_strides.sequence, op.k_strides.head,
                             op.k_strides.row,  op.v_strides.sequence, op.v_strides.head,     op.v_strides.row};
  for (const int64_t stride : strides) aligned = aligned && stride % 8 == 0;
  return aligned;
}

int splits_of(const Attend& op, int multiprocessors) {
  const int64_t rows = op.tokens * (op.q_heads / op.kv_heads);
  const bool small = !in_vectors(op) || has_few_rows(op);
  return split_keys(op, small ? tile_slots<16>(rows, op.sequences) : tile_slots<64>(rows, op.sequences),
                    multiprocessors);
}

}  // namespace

size_t workspace_bytes(const Attend& op, int multiprocessors) {
  return op.tokens == 0 || op.sequences == 0 ? 0 : parts_bytes(op, splits_of(op, multiprocessors));
}

int launch(const Attend& op, const Launch& where) {
  if (op.tokens == 0 || op.sequences == 0) return cudaSuccess;
  const int splits = splits_of(op, where.multiprocessors);
  if (in_vectors(op)) {
    if (op.head_dim <= 64) return attend_dim<64>(op, where, splits);
    if (op.head_dim <= 96) return attend_dim<96>(op, where, splits);
    if (op.head_dim <= 128) return attend_dim<128>(op, where, splits);
    return attend_dim<256>(op, where, splits);
  }
  switch (op.dtype) {
    case DType::float32: return launch_simple<float>(op, where, splits);
    case DType::bfloat16: return launch_simple<__nv_bfloat16>(op, where, splits);
    default: return launch_simple<__half>(op, where, splits);
  }
}

}  // namespace refusion::cuda
