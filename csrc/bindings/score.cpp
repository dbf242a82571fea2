// The ops that score tokens: score_tokens, score_hidden.
#include <cmath>

#include "bindings/ops.h"

namespace refusion {
namespace {

TokenChoice choice_of(Check& check, int64_t rows, int64_t vocab, const Maybe& given, const Maybe& suppressed,
                      float temperature, const Maybe& sample_keys) {
  TokenChoice choice{};
  if (given) {
    choice.given = check.vector<int64_t>(*given, "given", rows, "rows");
    for (int64_t i = 0; check.on_cpu() && i < rows; ++i)
      if (choice.given[i] >= vocab)
        bad_value(check.op, ": given[", i, "] is ", choice.given[i], ", the vocabulary has ", vocab, " entries");
  }
  if (suppressed) {
    if (suppressed->rank == 2) check.rank(*suppressed, "suppressed", {"rows", "ids"});
    else check.rank(*suppressed, "suppressed", {"ids"});
    check.dtype<int32_t>(*suppressed, "suppressed");
    check.contiguous(*suppressed, "suppressed");
    if (suppressed->rank == 2) check.axis(*suppressed, "suppressed", 0, "rows", rows, "the input");
    choice.suppressed = suppressed->as<const int32_t>();
    choice.suppressed_rows = suppressed->rank == 2 ? rows : 1;
    choice.suppressed_count = suppressed->shape[suppressed->rank - 1];
  }
  if (!(temperature >= 0) || std::isinf(temperature))
    bad_value(check.op, ": temperature must be finite and not negative, got ", temperature);
  choice.temperature = temperature;
  if (temperature > 0 && !sample_keys)
    bad_value(check.op, ": temperature ", temperature, " needs sample_keys, got None");
  if (sample_keys) {
    check.rank(*sample_keys, "sample_keys", {"rows", "4"});
    check.dtype<int64_t>(*sample_keys, "sample_keys");
    check.axis(*sample_keys, "sample_keys", 0, "rows", rows, "the input");
    check.axis(*sample_keys, "sample_keys", 1, "columns", 4, "a key (seed, sequence, position, round)");
    check.contiguous(*sample_keys, "sample_keys");
    choice.sample_keys = sample_keys->as<const int64_t>();
  }
  return choice;
}

// Scores are written row by row while other rows are read, so none may lie on an input or on another.
class Scores {
 public:
  Scores(Check& check, int64_t rows, const Tensor& token, const Tensor& probability, const Tensor& log_sum_exp,
         const Maybe& entropy, const Maybe& margin)
      : out{{&token, "out.token"}, {&probability, "out.probability"}, {&log_sum_exp, "out.log_sum_exp"}} {
    if (entropy) out[count++] = {&*entropy, "out.entropy"};
    if (margin) out[count++] = {&*margin, "out.margin"};
    scores.token = check.result<int64_t>(token, "out.token", rows, "rows");
    scores.probability = check.result<float>(probability, "out.probability", rows, "rows");
    scores.log_sum_exp = check.result<float>(log_sum_exp, "out.log_sum_exp", rows, "rows");
    scores.entropy = entropy ? check.result<float>(*entropy, "out.entropy", rows, "rows") : nullptr;
    scores.margin = margin ? check.result<float>(*margin, "out.margin", rows, "rows") : nullptr;
    for (int i = 1; i < count; ++i)
      for (int j = 0; j < i; ++j) check.apart(*out[i].first, out[i].second, *out[j].first, out[j].second);
  }

  void apart(const Check& check, const Tensor& input, const char* name) const {
    for (int i = 0; i < count; ++i) check.apart(*out[i].first, out[i].second, input, name);
  }
  void apart(const Check& check, const Maybe& input, const char* name) const {
    if (input) apart(check, *input, name);
  }

  TokenScores scores{};

 private:
  std::pair<const Tensor*, const char*> out[5];
  int count = 3;
};

}  // namespace

void score_tokens(const Tensor& logits, const Maybe& given, const Maybe& suppressed, float temperature,
                  const Maybe& sample_keys, const Tensor& token, const Tensor& probability, const Tensor& log_sum_exp,
                  const Maybe& entropy, const Maybe& margin) {
  Check check("score_tokens");
  check.rank(logits, "logits", {"rows", "vocab"});
  const DType dtype = check.floating(logits, "logits");
  check.last_axis_contiguous(logits, "logits");
  const int64_t rows = logits.shape[0], vocab = logits.shape[1];
  const TokenChoice choice = choice_of(check, rows, vocab, given, suppressed, temperature, sample_keys);
  const Scores out(check, rows, token, probability, log_sum_exp, entropy, margin);
  out.apart(check, logits, "logits");
  out.apart(check, given, "given");
  out.apart(check, suppressed, "suppressed");
  out.apart(check, sample_keys, "sample_keys");
  run(check, ScoreTokens{logits.data, dtype, rows, vocab, logits.strides[0], choice, out.scores});
}

void score_hidden(const Tensor& hidden, const Tensor& weight, const Maybe& given, const Maybe& suppressed,
                  float temperature, const Maybe& sample_keys, const Tensor& token, const Tensor& probability,
                  const Tensor& log_sum_exp, const Maybe& entropy, const Maybe& margin) {
  Check check("score_hidden");
  check.rank(hidden, "hidden", {"rows", "width"});
  check.rank(weight, "weight", {"vocab", "width"});
  const DType dtype = check.floating(hidden, "hidden");
  check.same_dtype(weight, "weight", hidden, "hidden");
  check.axis(weight, "weight", 1, "width", hidden.shape[1], "hidden");
  check.last_axis_contiguous(hidden, "hidden");
  check.last_axis_contiguous(weight, "weight");
  const int64_t rows = hidden.shape[0], vocab = weight.shape[0], width = hidden.shape[1];
  const TokenChoice choice = choice_of(check, rows, vocab, given, suppressed, temperature, sample_keys);
  const Scores out(check, rows, token, probability, log_sum_exp, entropy, margin);
  out.apart(check, hidden, "hidden");
  out.apart(check, weight, "weight");
  out.apart(check, given, "given");
  out.apart(check, suppressed, "suppressed");
  out.apart(check, sample_keys, "sample_keys");
  run(check, ScoreHidden{hidden.data, weight.data, dtype, rows, vocab, width, hidden.strides[0], weight.strides[0],
                         choice, out.scores});
}

}  // namespace refusion
