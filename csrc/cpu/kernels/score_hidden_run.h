// score_hidden with a product of one's choice (`Rows`: row_product.h).
// The LM head in tasks of up to kTask vocabulary ids: logits of a task live in the second-level cache just long enough
// to be scored. Working memory: rows of a panel packed (at most kPanel * width * 8 bytes) and, for each thread, the
// logits of one task and the state of every row of the panel (at most 140 KiB).
#pragma once
#include <omp.h>

#include <new>

#include "cpu/scratch.h"
#include "refusion/score_hidden.h"
#include "row_product.h"
#include "score.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

constexpr int64_t kTask = 512;  // ids

// Ids of a task: few where the vocabulary is small, so that threads have something to share. Never by the number of
// threads, on which results would then depend.
int64_t task_ids(int64_t vocab) { return vocab < 8 * kTask ? kGroup : kTask; }

size_t whole_lines(size_t bytes) { return (bytes + 63) & ~size_t(63); }

template <class Rows>
struct Panel {
  const ScoreHidden& op;
  int64_t first_row;
  Rows rows;
};

template <class Rows>
void score_task(const Panel<Rows>& panel, int64_t first_id, float* logits, ScoreState* states) {
  const int64_t ids = task_ids(panel.op.vocab);
  const int64_t count = panel.op.vocab - first_id < ids ? panel.op.vocab - first_id : ids;
  using T = typename Rows::Element;
  const T* weight = static_cast<const T*>(panel.op.weight) + first_id * panel.op.weight_stride;
  for (int64_t id = 0; id < count; id += kGroup)
    panel.rows.multiply(weight + id * panel.op.weight_stride, panel.op.weight_stride, panel.op.width,
                        count - id < kGroup ? count - id : kGroup, logits + id, kTask);
  for (int64_t row = 0; row < panel.rows.count; ++row) {
    const ScoreSums total = states[row].sums;
    states[row].sums = ScoreSums();
    add_block(logits + row * kTask, count, first_id, RowChoice(panel.op, panel.first_row + row), states + row);
    merge(&states[row].sums, total);
  }
}

template <class Rows>
void score_panel(const ScoreHidden& op, int64_t first_row, int64_t rows) {
  using T = typename Rows::Element;
  using Packed = typename Rows::Packed;
  const int64_t packed_stride = Rows::stride_of(op.width);
  const int64_t ids = task_ids(op.vocab), tasks = (op.vocab + ids - 1) / ids;
  const bool parallel = tasks > 1 && rows * op.vocab * op.width > kParallelProducts;
  // Always the full team: another team size would make the runtime end threads that torch needs again.
  const int64_t threads = parallel ? omp_get_max_threads() : 1;

  // Packed rows, then for each thread its logits and its states.
  const size_t packed_bytes = whole_lines(size_t(Rows::room_for(rows) * packed_stride) * sizeof(Packed));
  const size_t logits_bytes = size_t(rows * kTask) * sizeof(float);
  const size_t thread_bytes = logits_bytes + whole_lines(size_t(rows) * sizeof(ScoreState));
  char* memory = static_cast<char*>(scratch(packed_bytes + size_t(threads) * thread_bytes));
  const Panel<Rows> panel{op, first_row, {reinterpret_cast<Packed*>(memory), rows, packed_stride}};
  const T* hidden = static_cast<const T*>(op.hidden) + first_row * op.hidden_stride;
  for (int64_t row = 0; row < rows; ++row)
    pack_row(hidden + row * op.hidden_stride, op.width, panel.rows.row(row));
  panel.rows.arrange();
  auto states_of = [&](int64_t thread) {
    return reinterpret_cast<ScoreState*>(memory + packed_bytes + size_t(thread) * thread_bytes + logits_bytes);
  };
  for (int64_t thread = 0; thread < threads; ++thread)
    for (int64_t row = 0; row < rows; ++row) new (states_of(thread) + row) ScoreState;

#pragma omp parallel if (parallel)
  {
    ScoreState* states = states_of(omp_get_thread_num());
    float* logits = reinterpret_cast<float*>(reinterpret_cast<char*>(states) - logits_bytes);
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < tasks; ++task) score_task(panel, task * ids, logits, states);
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t thread = 1; thread < threads; ++thread) merge(states_of(0) + row, states_of(thread)[row]);
    deliver(states_of(0)[row], RowChoice(op, first_row + row), op.scores, first_row + row);
  }
}

template <class Rows>
void run_score_hidden(const ScoreHidden& op) {
  for (int64_t row = 0; row < op.rows; row += kPanel)
    score_panel<Rows>(op, row, op.rows - row < kPanel ? op.rows - row : kPanel);
}

}  // namespace
}  // namespace refusion::cpu::REFUSION_ISA
