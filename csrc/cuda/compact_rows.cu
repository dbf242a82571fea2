// One block a plane of rows (a layer's keys or values of one sequence and head), in tiles: read, barrier, write.
// Sources increase and never lie below their destination, so no tile writes what a later one reads.
#include "cuda/launchers.h"
#include "cuda/ranges.cuh"

namespace refusion::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHeld = 4;  // units that a thread holds between reading and writing

// budget: registers 64, shared 0
template <class Unit>
__global__ void __launch_bounds__(kThreads) compact_planes(CompactRows op, int units) {  // units of a row
  const int64_t plane = blockIdx.x, head = plane % op.kv_heads, sequence = plane / op.kv_heads % op.sequences;
  const int64_t outer = plane / op.kv_heads / op.sequences;  // layer, key or value
  const int64_t offset = outer / op.planes * op.layer_stride + outer % op.planes * op.plane_stride +
                         sequence * op.sequence_stride + head * op.head_stride;
  char* rows = static_cast<char*>(op.cache) + offset * op.element_size;
  const int64_t stride = op.row_stride * op.element_size;
  const Range kept(op.source_offsets, sequence, op.kept);
  const int first = max(op.destination[sequence], 0);
  const auto unit = [&](int row, int column) { return reinterpret_cast<Unit*>(rows + row * stride) + column; };
  const int64_t total = int64_t(kept.length()) * units;
  for (int64_t base = 0; base < total; base += kHeld * kThreads) {
    Unit held[kHeld];
    int target[kHeld], column[kHeld];
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int64_t item = base + h * kThreads + int64_t(threadIdx.x);
      const int index = int(item / units);
      column[h] = int(item % units);
      const int source = item < total ? op.sources[kept.begin + index] : -1;
      const bool moves = source >= 0 && source < op.capacity && first < source - index;  // down, as all valid ones do
      target[h] = moves ? first + index : -1;
      if (target[h] >= 0) held[h] = *unit(source, column[h]);
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      if (target[h] >= 0) *unit(target[h], column[h]) = held[h];
  }
}

template <class Unit>
int launch_as(const CompactRows& op, const Launch& where) {
  const int64_t planes = op.layers * op.planes * op.sequences * op.kv_heads;
  const int units = int(op.head_dim * op.element_size / int64_t(sizeof(Unit)));
  return launch(compact_planes<Unit>, dim3(unsigned(planes)), dim3(kThreads), 0, where.stream, op, units);
}

// Whether every row can be moved in units of 16 bytes.
bool in_vectors(const CompactRows& op) {
  const int64_t strides[] = {op.layer_stride, op.plane_stride, op.sequence_stride,
                             op.head_stride,  op.row_stride,   op.head_dim};
  bool aligned = reinterpret_cast<uintptr_t>(op.cache) % 16 == 0;
  for (const int64_t stride : strides) aligned = aligned && stride * op.element_size % 16 == 0;
  return aligned;
}

}  // namespace

size_t workspace_bytes(const CompactRows&, int) { return 0; }

int launch(const CompactRows& op, const Launch& where) {
  if (op.layers * op.planes * op.sequences * op.kv_heads * op.head_dim == 0) return cudaSuccess;
  if (in_vectors(op)) return launch_as<uint4>(op, where);
  return op.element_size == 2 ? launch_as<uint16_t>(op, where) : launch_as<uint32_t>(op, where);
}

}  // namespace refusion::cuda
