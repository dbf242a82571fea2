// One pass over the logits. Rows are cut into pieces of fixed size that are scored on their own and merged in order, so
// that a result depends neither on the number of threads nor on the other rows.
#include <omp.h>

#include "score.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

constexpr int64_t kPiece = 8 * kBlock;
constexpr int64_t kParallelElements = 1 << 16;  // below, a parallel region costs more than it saves
constexpr int64_t kMostPieces = 256;            // states on the stack of a call with fewer rows than threads

// Adds one piece to a state whose sums are empty.
template <class T>
void add_piece(const ScoreTokens& op, int64_t row, int64_t piece, ScoreState* state) {
  const T* x = static_cast<const T*>(op.logits) + row * op.row_stride;
  const RowChoice choice(op, row);
  const int64_t end = (piece + 1) * kPiece < op.vocab ? (piece + 1) * kPiece : op.vocab;
  for (int64_t id = piece * kPiece; id < end; id += kBlock)
    add_block(x + id, end - id < kBlock ? end - id : kBlock, id, choice, state);
}

template <class T>
void score_row(const ScoreTokens& op, int64_t row, int64_t pieces) {
  ScoreState state;  // carries its candidates from piece to piece, its sums are of one piece
  ScoreSums total;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    state.sums = ScoreSums();
    add_piece<T>(op, row, piece, &state);
    merge(&total, state.sums);
  }
  state.sums = total;
  deliver(state, RowChoice(op, row), op.scores, row);
}

template <class T>
void score_rows(const ScoreTokens& op) {
  const int64_t pieces = (op.vocab + kPiece - 1) / kPiece;
  const bool parallel = op.rows * op.vocab > kParallelElements;
  if (!parallel || op.rows >= omp_get_max_threads() || op.rows * pieces > kMostPieces) {
#pragma omp parallel for schedule(dynamic) if (parallel && op.rows > 1)
    for (int64_t row = 0; row < op.rows; ++row) score_row<T>(op, row, pieces);
    return;
  }
  ScoreState states[kMostPieces];
#pragma omp parallel for schedule(dynamic) if (pieces > 1)
  for (int64_t i = 0; i < op.rows * pieces; ++i) add_piece<T>(op, i / pieces, i % pieces, states + i);
  for (int64_t row = 0; row < op.rows; ++row) {
    ScoreState state;
    for (int64_t piece = 0; piece < pieces; ++piece) merge(&state, states[row * pieces + piece]);
    deliver(state, RowChoice(op, row), op.scores, row);
  }
}

}  // namespace

void score_tokens(const ScoreTokens& op) {
  with_type(op.dtype, [&](auto element) { score_rows<decltype(element)>(op); });
}

}  // namespace refusion::cpu::REFUSION_ISA
