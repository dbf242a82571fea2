// score_hidden: score_tokens of hidden @ weight^T, streamed over vocabulary blocks; logits never exist in memory.
#pragma once
#include "refusion/score_tokens.h"

namespace refusion {

struct ScoreHidden {
  const void* hidden;  // [rows, width]
  const void* weight;  // [vocab, width]
  DType dtype;
  int64_t rows, vocab, width;
  int64_t hidden_stride, weight_stride;  // elements between rows
  TokenChoice choice;
  TokenScores scores;
};

}  // namespace refusion
