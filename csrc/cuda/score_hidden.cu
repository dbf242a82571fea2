// The LM head streamed over parts of the vocabulary into states, which a second launch merges in order: logits never
// reach global memory.
#include "cuda/score_hidden_simple.cuh"
#include "cuda/score_hidden_tiles.cuh"

namespace refusion::cuda {
namespace {

// Whether rows can be copied in units of 16 bytes.
bool in_vectors(const ScoreHidden& op) {
  bool aligned = op.dtype != DType::float32;
  for (const void* p : {op.hidden, op.weight}) aligned = aligned && reinterpret_cast<uintptr_t>(p) % 16 == 0;
  for (const int64_t n : {op.width, op.hidden_stride, op.weight_stride}) aligned = aligned && n % 8 == 0;
  return aligned;
}

}  // namespace

size_t workspace_bytes(const ScoreHidden& op, int) { return states_bytes(op, split_vocabulary(op)); }

int launch(const ScoreHidden& op, const Launch& where) {
  if (op.rows == 0) return cudaSuccess;
  const VocabularyParts parts = split_vocabulary(op);
  if (in_vectors(op))
    return op.dtype == DType::bfloat16 ? launch_tiles<__nv_bfloat16>(op, parts, where)
                                       : launch_tiles<__half>(op, parts, where);
  switch (op.dtype) {
    case DType::float32: return launch_simple<float>(op, parts, where);
    case DType::bfloat16: return launch_simple<__nv_bfloat16>(op, parts, where);
    default: return launch_simple<__half>(op, parts, where);
  }
}

}  // namespace refusion::cuda
