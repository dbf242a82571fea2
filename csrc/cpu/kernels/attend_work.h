// How attend is cut into tasks: (sequence, key-value head, some query rows, some keys), and the state each one leaves.
//
// The cut depends on a sequence's own sizes only, never on the batch around it or the number of threads, and partial
// states are merged in key order: so a sequence's result is the same to the bit in any batch and on any machine size.
#pragma once
#include "attend_tile.h"
#include "ops.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Range {
  int64_t begin, end;
};

// Rows are numbered token * group + grouped head within a sequence.
struct Task {
  int64_t sequence, head;  // key-value head
  int64_t first, rows;     // query rows
  int64_t begin, end;      // keys
  int64_t keys;            // of the sequence: behind the last one that any of its tokens sees
  int64_t seen;            // first entry of the sequence in Work::seen
};

// Softmax state of a task: per tile of kTile rows most and sum, and out[dim][row]; the last state of a row is
// out / sum; most is in units of unscaled scores.
struct Partial {
  float* most;
  float* sum;
  float* out;

  // The state of tile t of a task over tasks of kTaskRows rows.
  Partial tile(int64_t t, int64_t head_dim) const {
    return {most + t * kTile, sum + t * kTile, out + t * kTile * head_dim};
  }
};

constexpr int64_t kTaskRows = 8 * kTile;  // query rows of a task: their state stays in the second-level cache
constexpr int64_t kSplitKeys = 1024;      // keys of a task at least, where keys are split
constexpr int64_t kSplits = 64;           // of a task's keys at most
constexpr int64_t kSplitTasks = 8;        // keys are split until a sequence has this many tasks

struct Work {
  const Attend& op;
  int64_t group;
  float sign;           // of the scale; queries are multiplied by it
  float scale;          // size of the scale, in powers of two; not 0, so that an unseen key stays at minus infinity
  const uint8_t* seen;  // per provisional row of each sequence: does any token see it

  template <class T>
  const T* cache(const void* base, const CacheStrides& strides, const Task& task) const {
    return static_cast<const T*>(base) + task.sequence * strides.sequence + task.head * strides.head;
  }

  int64_t token(const Task& task, int64_t row) const {
    return op.sequence_offsets[task.sequence] + (task.first + row) / group;
  }
  int64_t query_head(const Task& task, int64_t row) const { return task.head * group + (task.first + row) % group; }

  template <class T>
  const T* query(const Task& task, int64_t row) const {
    const int64_t offset = token(task, row) * op.q_token_stride + query_head(task, row) * op.q_head_stride;
    return static_cast<const T*>(op.q) + offset;
  }

  template <class T>
  void read_query(const Task& task, int64_t row, float* q) const {
    const T* from = query<T>(task, row);
    for (int64_t d = 0; d < op.head_dim; ++d) q[d] = to_float(from[d]) * sign;
  }

  // Cache rows of the window, empty ones as begin == end == committed.
  Range window(const Task& task, int64_t row) const {
    const int64_t t = token(task, row), committed = op.committed[task.sequence];
    const int64_t begin = op.window_begin[t], end = op.window_end[t];
    return begin < end ? Range{committed + begin, committed + end} : Range{committed, committed};
  }
};

}  // namespace
}  // namespace refusion::cpu::REFUSION_ISA
