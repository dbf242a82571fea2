// attend's tasks, their threads and the merge of their states.
#pragma once
#include <omp.h>

#include <type_traits>

#include "attend_direct.h"
#include "attend_tiles.h"
#include "cpu/scratch.h"
#include "transpose.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

constexpr int64_t kParallelProducts = 1 << 20;  // multiply-adds below which a parallel region costs more than it saves

template <class T, class Kind>
void run_task(const Work& work, const Task& task, Partial partial, const Buffers& buffers) {
  if (task.rows <= kDirectRows && task.first == 0) attend_direct<T>(work, task, partial);
  else TiledTask<T, Kind>(work, task, partial, buffers).run();
}

// Merges the states of one task's key splits in order and writes the rows of `out`.
template <class T>
void finish(const Work& work, const Task& task, float* const* states, int64_t splits) {
  const Attend& op = work.op;
  // Rows lie along the lanes; those behind the last hold anything and are not written.
  for (int64_t first = 0; first < task.rows; first += kLanes) {
    const int64_t tile = first / kTile, lane = first % kTile, rows = lanes_at(first, task.rows);
    T* out[kLanes];
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = work.token(task, first + i) * op.q_heads + work.query_head(task, first + i);
      out[i] = static_cast<T*>(op.out) + row * op.head_dim;
    }
    const auto state = [&](int64_t s) { return partial_at(states[s]).tile(tile, op.head_dim); };
    Floats top = broadcast(kNothing), sum = broadcast(0.0f), share[kSplits];
    for (int64_t s = 0; s < splits; ++s) top = at_least(load(state(s).most + lane), top);
    for (int64_t s = 0; s < splits; ++s) {
      share[s] = weight((load(state(s).most + lane) - top) * broadcast(work.scale));
      sum = fma(share[s], load(state(s).sum + lane), sum);
    }
    float inverse[kLanes];
    store(inverse, sum);
    for (float& x : inverse) x = x == 0 ? 0.0f : 1.0f / x;
    for (int64_t d = 0; d < op.head_dim; d += kLanes) {
      const int64_t dims = lanes_at(d, op.head_dim);
      float square[kLanes][kLanes];
      for (int64_t i = 0; i < dims; ++i) {
        Floats x = broadcast(0.0f);
        for (int64_t s = 0; s < splits; ++s) x = fma(share[s], load(state(s).out + (d + i) * kTile + lane), x);
        store(square[i], x * load(inverse));
      }
      transpose(square, kLanes, square, kLanes, rows);
      for (int64_t i = 0; i < rows; ++i) store_lanes(out[i] + d, load(square[i]), dims);
    }
  }
}

// A sequence's share of the work.
struct Plan {
  int64_t tokens, rows, keys, row_parts, splits, split_keys, tasks;
};

Plan plan_of(const Attend& op, int64_t sequence) {
  Plan p{};
  p.tokens = op.sequence_offsets[sequence + 1] - op.sequence_offsets[sequence];
  p.keys = op.committed[sequence];
  for (int64_t t = op.sequence_offsets[sequence]; t < op.sequence_offsets[sequence + 1]; ++t)
    if (op.window_begin[t] < op.window_end[t]) p.keys = most(p.keys, op.committed[sequence] + op.window_end[t]);
  p.rows = p.tokens * (op.q_heads / op.kv_heads);
  p.row_parts = ceil_div(p.rows, kTaskRows);
  const int64_t parts = p.row_parts * op.kv_heads;
  p.splits = parts == 0 ? 0 : most(1, least(ceil_div(kSplitTasks, parts), least(p.keys / kSplitKeys, kSplits)));
  p.split_keys = p.splits == 0 ? 0 : ceil_div(ceil_div(p.keys, p.splits), kBlock) * kBlock;
  p.tasks = parts * p.splits;
  return p;
}

// Marks the provisional rows that some token of the sequence sees: seen[0 .. keys - committed).
void mark_seen(const Attend& op, int64_t sequence, int64_t keys, uint8_t* seen) {
  const int64_t count = keys - op.committed[sequence];
  std::memset(seen, 0, size_t(count));
  int64_t begin = 0, end = 0;  // the range marked last: windows mostly grow by a row
  for (int64_t t = op.sequence_offsets[sequence]; t < op.sequence_offsets[sequence + 1]; ++t) {
    const int64_t first = op.window_begin[t], last = op.window_end[t];
    if (first >= last) continue;
    const bool grows = begin <= first && first <= end;
    for (int64_t i = grows ? end : first; i < last; ++i) seen[i] = 1;
    begin = grows ? begin : first;
    end = grows ? most(end, last) : last;
  }
}

template <class T, class Kind>
void attend_typed(const Attend& op) {
  int64_t tasks = 0, products = 0, provisional = 0, unsplit = 0;
  for (int64_t n = 0; n < op.sequences; ++n) {
    const Plan p = plan_of(op, n);
    tasks += p.tasks;
    unsplit += p.row_parts * op.kv_heads;
    products += p.rows * op.kv_heads * p.keys * op.head_dim * 2;
    provisional += p.keys - op.committed[n];
  }
  if (tasks == 0) return;
  const int threads = products < kParallelProducts ? 1 : int(least(omp_get_max_threads(), tasks));
  const auto rounded = [](int64_t bytes) { return ceil_div(bytes, 64) * 64; };
  const int64_t state_bytes = rounded(kFloatsOfTask(op.head_dim) * 4);
  const int64_t thread_bytes = rounded(kFloatsOfThread(op.head_dim) * 4);
  const int64_t list_bytes = rounded(tasks * int64_t(sizeof(Task))), seen_bytes = rounded(provisional);
  // One state a task where keys are split, else one a thread: an unsplit task is finished at once.
  const int64_t states = tasks == unsplit ? threads : tasks;
  const int64_t bytes = list_bytes + seen_bytes + states * state_bytes + threads * thread_bytes;
  auto* memory = static_cast<char*>(scratch(size_t(bytes)));
  auto* list = reinterpret_cast<Task*>(memory);
  auto* seen = reinterpret_cast<uint8_t*>(memory + list_bytes);
  char* const state_base = memory + list_bytes + seen_bytes;
  char* const thread_base = state_base + states * state_bytes;

  int64_t count = 0, offset = 0;
  for (int64_t n = 0; n < op.sequences; ++n) {
    const Plan p = plan_of(op, n);
    if (p.tasks == 0) continue;
    mark_seen(op, n, p.keys, seen + offset);
    for (int64_t part = 0; part < p.row_parts; ++part)
      for (int64_t head = 0; head < op.kv_heads; ++head)
        for (int64_t s = 0; s < p.splits; ++s)
          list[count++] = {n,
                           head,
                           part * kTaskRows,
                           least(kTaskRows, p.rows - part * kTaskRows),
                           least(p.keys, s * p.split_keys),
                           least(p.keys, (s + 1) * p.split_keys),
                           p.keys,
                           offset};
    offset += p.keys - op.committed[n];
  }

  // Differences of scores are scaled, not scores: a rounded scale then costs nothing where weights are not tiny.
  const float exponent = op.scale * 1.44269504088896f, size = exponent < 0 ? -exponent : exponent;
  const Work work{op, op.q_heads / op.kv_heads, exponent < 0 ? -1.0f : 1.0f, size > 1e-37f ? size : 1e-37f, seen};
  const bool split = states == tasks && tasks != unsplit;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < tasks; ++i) {
    const int64_t thread = omp_get_thread_num();
    auto* state = reinterpret_cast<float*>(state_base + (split ? i : thread) * state_bytes);
    auto* buffers = reinterpret_cast<float*>(thread_base + thread * thread_bytes);
    run_task<T, Kind>(work, list[i], partial_at(state), buffers_at(buffers, op.head_dim));
    if (!split) finish<T>(work, list[i], &state, 1);
  }
  if (!split) return;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < tasks; ++i) {
    if (list[i].begin != 0) continue;  // the first split of a task finishes all of them
    float* states_of_task[kSplits];
    int64_t splits = 0;
    for (int64_t j = i; j < tasks && (j == i || list[j].begin != 0); ++j)
      states_of_task[splits++] = reinterpret_cast<float*>(state_base + j * state_bytes);
    finish<T>(work, list[i], states_of_task, splits);
  }
}

// Kind: of the products of bfloat16.
template <class Kind>
void run_attend(const Attend& op) {
  with_type(op.dtype, [&](auto element) {
    using T = decltype(element);
    attend_typed<T, std::conditional_t<std::is_same_v<T, BFloat16>, Kind, Singles>>(op);
  });
}

}  // namespace
}  // namespace refusion::cpu::REFUSION_ISA
