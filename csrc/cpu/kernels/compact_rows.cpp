// Moves kept rows down inside each (layer, key or value, sequence, head) piece. Because sources increase and never lie
// below their destination, ascending order never overwrites a row that is still to be read.
#include <cstring>

#include "cpu/simd.h"
#include "ops.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

// Bytes below which a parallel region costs more than it saves.
constexpr int64_t kParallelBytes = 1 << 18;

// Rows ahead that are asked for while short runs are moved: the hardware does not foresee gaps.
constexpr int32_t kAhead = 8;

// Bytes from which rows are written past the caches, which would not hold them until they are read: the lines they go to
// are then not read first.
constexpr int64_t kStreamedBytes = 32 << 20;

constexpr int64_t kLine = 64;

// Copies whole aligned lines past the caches; `end_stream` before another thread reads them.
#if defined(__AVX512F__)
constexpr bool kStreams = true;
void stream(char* to, const char* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kLine)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
}
void end_stream() { _mm_sfence(); }
#elif defined(__AVX2__)
constexpr bool kStreams = true;
void stream(char* to, const char* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kLine / 2)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
}
void end_stream() { _mm_sfence(); }
#else
constexpr bool kStreams = false;
void stream(char*, const char*, int64_t) {}
void end_stream() {}
#endif

// Moves rows that lie one after another down by whole rows.
void move_rows(char* to, const char* from, int64_t count, int64_t stride, int64_t row_bytes, bool streams) {
  if (streams) {
    for (int64_t row = 0; row < count; ++row) stream(to + row * stride, from + row * stride, row_bytes);
  } else if (stride == row_bytes) {
    std::memmove(to, from, size_t(count * row_bytes));
  } else {
    for (int64_t row = 0; row < count; ++row) std::memmove(to + row * stride, from + row * stride, size_t(row_bytes));
  }
}

void compact_piece(const CompactRows& op, char* piece, int64_t sequence, bool streams) {
  const int64_t stride = op.row_stride * op.element_size, row_bytes = op.head_dim * op.element_size;
  const int32_t begin = op.source_offsets[sequence], end = op.source_offsets[sequence + 1];
  const int64_t first = op.destination[sequence] - begin;  // destination of sources[i] is first + i
  streams = streams && (reinterpret_cast<uintptr_t>(piece) | uintptr_t(stride) | uintptr_t(row_bytes)) % kLine == 0;
  for (int32_t i = begin; i < end;) {
    // A run of consecutive sources is one move.
    int32_t next = i + 1;
    while (next < end && op.sources[next] == op.sources[next - 1] + 1) ++next;
    if (next - i < kAhead && next + kAhead <= end) {
      const char* later = piece + op.sources[next + kAhead - 1] * stride;
      for (int64_t line = 0; line < row_bytes; line += kLine) __builtin_prefetch(later + line);
    }
    char* to = piece + (first + i) * stride;
    const char* from = piece + op.sources[i] * stride;
    if (to != from) move_rows(to, from, next - i, stride, row_bytes, streams);
    i = next;
  }
  if (streams) end_stream();
}

}  // namespace

void compact_rows(const CompactRows& op) {
  if (!op.sequences) return;
  const int64_t pieces = op.layers * op.planes * op.sequences * op.kv_heads;
  const int64_t kept = op.source_offsets[op.sequences];
  const int64_t bytes = op.layers * op.planes * op.kv_heads * kept * op.head_dim * op.element_size;
  const bool streams = kStreams && bytes >= kStreamedBytes;
#pragma omp parallel for schedule(dynamic, 4) if (bytes > kParallelBytes)
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t head = i % op.kv_heads, sequence = i / op.kv_heads % op.sequences;
    const int64_t outer = i / op.kv_heads / op.sequences;  // layer and plane
    const int64_t offset = outer / op.planes * op.layer_stride + outer % op.planes * op.plane_stride +
                           sequence * op.sequence_stride + head * op.head_stride;
    compact_piece(op, static_cast<char*>(op.cache) + offset * op.element_size, sequence, streams);
  }
}

}  // namespace refusion::cpu::REFUSION_ISA
