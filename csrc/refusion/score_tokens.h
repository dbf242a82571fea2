// score_tokens: one pass over logits, one chosen (or given) token a row with its probability.
#pragma once
#include "refusion/dtype.h"

namespace refusion {

// Where the scores of each row go; every array has one element a row.
struct TokenScores {
  int64_t* token;        // chosen id, or the given one; -1 when no id may be chosen
  float* probability;    // of `token` under softmax(logits) at temperature 1, suppressed ids included
  float* log_sum_exp;    // natural logarithm
  float* entropy;        // nats, or null
  float* margin;         // best minus second best probability of the ids that may be chosen, or null
};

// How a row chooses its token. Shared by score_tokens and score_hidden.
struct TokenChoice {
  const int64_t* given;        // [rows] ids to score instead of choosing; negative or null: choose
  const int32_t* suppressed;   // [suppressed_rows, suppressed_count]; negative entries are ignored
  int64_t suppressed_rows;     // 1 (the same ids for every row) or rows
  int64_t suppressed_count;    // 0: none. Suppressed ids cannot be chosen but stay in the normaliser
  float temperature;           // 0: arg-max, lowest id wins ties; > 0: Gumbel-max sample
  const int64_t* sample_keys;  // [rows, 4] seed, sequence, position, round; null at temperature 0
};

struct ScoreTokens {
  const void* logits;  // [rows, vocab]; NaN counts as -infinity
  DType dtype;
  int64_t rows, vocab;
  int64_t row_stride;  // elements
  TokenChoice choice;
  TokenScores scores;
};

}  // namespace refusion
