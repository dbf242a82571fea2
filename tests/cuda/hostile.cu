// Every op on indices drawn without regard for what they may be. Built with the address and undefined-behaviour
// sanitizers: all that counts is that nothing is read or written outside of the arrays.
#include <climits>
#include <cstdio>
#include <random>
#include <vector>

#include "cuda/launchers.h"
#include "cuda/portable.cuh"

namespace refusion {
namespace {

std::mt19937 chance(1);

int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(chance); }

// Mostly in the range of what is valid or one off its end, sometimes anything.
std::vector<int32_t> hostile(size_t count, int limit) {
  std::vector<int32_t> values(count);
  for (int32_t& value : values) {
    const int kind = draw(0, 5);
    value = kind == 0   ? INT_MIN
            : kind == 1 ? INT_MAX
            : kind == 2 ? draw(INT_MIN, INT_MAX)
            : kind == 3 ? limit + draw(-1, 1)
                        : draw(-2, limit + 2);
  }
  return values;
}

// Filled with ones, of any 16- or 32-bit type.
std::vector<float> floats(int64_t count) { return std::vector<float>(size_t(count), 1.0f); }

template <class Op>
void run(const Op& op) {
  std::vector<char> workspace(cuda::workspace_bytes(op, 3), char(0xff));
  cuda::launch(op, {nullptr, workspace.empty() ? nullptr : workspace.data(), 3});
}

void slots() {
  const int tokens = draw(1, 40), slots = draw(1, 150), sequences = draw(1, 3);
  const auto scores = floats(tokens);
  const auto slot_offsets = hostile(slots + 1, tokens), sequence_offsets = hostile(sequences + 1, slots);
  std::vector<int32_t> chosen(slots), counts(sequences), accepted(slots), eos(slots), runs(sequences);
  auto confidence = floats(slots);
  for (const SlotRule rule : {SlotRule::first, SlotRule::mean, SlotRule::minimum}) {
    SelectSlots op{};
    op.scores = scores.data();
    op.slot_offsets = slot_offsets.data();
    op.sequence_offsets = sequence_offsets.data();
    op.tokens = tokens;
    op.slots = slots;
    op.sequences = sequences;
    op.threshold = 0.5f;
    op.rule = rule;
    op.confidence = confidence.data();
    op.chosen = chosen.data();
    op.counts = counts.data();
    run(op);
  }
  const std::vector<int64_t> token(tokens, 3), ends{3};
  const auto before = hostile(slots, 4);
  AcceptTokens op{};
  op.probability = scores.data();
  op.token = token.data();
  op.slot_offsets = slot_offsets.data();
  op.accepted_before = before.data();
  op.sequence_offsets = sequence_offsets.data();
  op.eos_token_ids = ends.data();
  op.tokens = tokens;
  op.slots = slots;
  op.sequences = sequences;
  op.eos_count = 1;
  op.threshold = 0.5f;
  op.accepted = accepted.data();
  op.eos = eos.data();
  op.run = runs.data();
  run(op);
}

// A cache of float32, in which 16-bit elements fit as well.
void cache() {
  const int sequences = draw(1, 3), kv_heads = 2, group = draw(1, 3), capacity = draw(1, 600), dim = 64;
  const int tokens = draw(1, 40), positions = 50;
  const CacheStrides strides{int64_t(kv_heads) * capacity * dim, int64_t(capacity) * dim, dim};
  const int64_t heads = (group + 2) * kv_heads;
  auto k = floats(sequences * strides.sequence), v = k;
  const auto offsets = hostile(sequences + 1, tokens), rows = hostile(tokens, capacity);
  const auto position = hostile(tokens, positions);
  const auto qkv = floats(tokens * heads * dim), table = floats(positions * dim / 2);
  auto q = floats(int64_t(tokens) * group * kv_heads * dim), out = q;
  RopeAppend append{};
  append.qkv = qkv.data();
  append.tokens = tokens;
  append.q_heads = group * kv_heads;
  append.kv_heads = kv_heads;
  append.head_dim = dim;
  append.qkv_stride = heads * dim;
  append.cosine = append.sine = table.data();
  append.positions = positions;
  append.position_ids = position.data();
  append.rows = rows.data();
  append.sequence_offsets = offsets.data();
  append.sequences = sequences;
  append.capacity = capacity;
  append.k_cache = k.data();
  append.v_cache = v.data();
  append.k_strides = append.v_strides = strides;
  append.q = q.data();
  run(append);

  const auto committed = hostile(sequences, capacity), begin = hostile(tokens, capacity),
             end = hostile(tokens, capacity);
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    Attend attend{};
    attend.q = q.data();
    attend.dtype = dtype;
    attend.tokens = tokens;
    attend.q_heads = group * kv_heads;
    attend.kv_heads = kv_heads;
    attend.head_dim = dim;
    attend.q_token_stride = attend.q_heads * dim;
    attend.q_head_stride = dim;
    attend.k_cache = k.data();
    attend.v_cache = v.data();
    attend.k_strides = attend.v_strides = strides;
    attend.sequences = sequences;
    attend.capacity = capacity;
    attend.sequence_offsets = offsets.data();
    attend.committed = committed.data();
    attend.window_begin = begin.data();
    attend.window_end = end.data();
    attend.scale = 0.1f;
    attend.out = out.data();
    run(attend);
  }
}

void moves() {
  const int sequences = draw(1, 3), kv_heads = 2, capacity = draw(1, 600), dim = 16;
  const CacheStrides strides{int64_t(kv_heads) * capacity * dim, int64_t(capacity) * dim, dim};
  auto rows = floats(sequences * strides.sequence);
  const auto sources = hostile(draw(1, 200), capacity), destination = hostile(sequences, capacity);
  const auto source_offsets = hostile(sequences + 1, int(sources.size()));
  CompactRows compact{};
  compact.cache = rows.data();
  compact.element_size = 4;
  compact.layers = compact.planes = 1;
  compact.sequences = sequences;
  compact.kv_heads = kv_heads;
  compact.capacity = capacity;
  compact.head_dim = dim;
  compact.sequence_stride = strides.sequence;
  compact.head_stride = strides.head;
  compact.row_stride = strides.row;
  compact.kept = int64_t(sources.size());
  compact.sources = sources.data();
  compact.source_offsets = source_offsets.data();
  compact.destination = destination.data();
  run(compact);
}

void scores() {
  const int rows = draw(1, 5), vocab = draw(1, 700), width = 64, ids = draw(1, 9);
  const auto logits = floats(int64_t(rows) * vocab), hidden = floats(int64_t(rows) * width);
  const auto weight = floats(int64_t(vocab) * width);
  std::vector<int64_t> given, token(rows);
  for (const int32_t id : hostile(rows, vocab)) given.push_back(id);
  const auto suppressed = hostile(size_t(rows) * ids, vocab);
  auto probability = floats(rows), log_sum = probability, entropy = probability, margin = probability;
  const TokenScores found{token.data(), probability.data(), log_sum.data(), entropy.data(), margin.data()};
  const TokenChoice choice{given.data(), suppressed.data(), rows, ids, 0.0f, nullptr};
  run(ScoreTokens{logits.data(), DType::float32, rows, vocab, vocab, choice, found});
  for (const DType dtype : {DType::float32, DType::bfloat16})
    run(ScoreHidden{hidden.data(), weight.data(), dtype, rows, vocab, width, width, width, choice, found});
}

}  // namespace
}  // namespace refusion

int main() {
  for (int turn = 0; turn < 60; ++turn) refusion::slots();
  for (int turn = 0; turn < 6; ++turn) refusion::cache();
  for (int turn = 0; turn < 60; ++turn) refusion::moves();
  for (int turn = 0; turn < 12; ++turn) refusion::scores();
  printf("all inside\n");
}
