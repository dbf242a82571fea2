#include <cmath>

#include "cpu/simd.h"
#include "ops.h"
#include "refusion/philox.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

bool is_suppressed(const TokenChoice& choice, int64_t row, int64_t id) {
  const int64_t first = choice.suppressed_rows > 1 ? row * choice.suppressed_count : 0;
  for (int64_t i = 0; i < choice.suppressed_count; ++i)
    if (choice.suppressed[first + i] == id) return true;
  return false;
}

template <class T>
void score_row(const ScoreTokens& op, int64_t row) {
  const T* x = static_cast<const T*>(op.logits) + row * op.row_stride;
  const TokenChoice& choice = op.choice;
  auto value = [&](int64_t i) { return std::isnan(to_float(x[i])) ? -INFINITY : to_float(x[i]); };
  float most = -INFINITY, best = -INFINITY, second = -INFINITY, sampled = -INFINITY;
  int64_t token = -1;
  for (int64_t i = 0; i < op.vocab; ++i) most = value(i) > most ? value(i) : most;
  double sum = 0, weighted = 0;
  for (int64_t i = 0; i < op.vocab; ++i) {
    const float v = value(i);
    if (v == -INFINITY) continue;
    sum += std::exp(double(v) - most);
    weighted += std::exp(double(v) - most) * (double(v) - most);
    if (is_suppressed(choice, row, i)) continue;
    float drawn = v;
    if (choice.temperature > 0) {
      const float u = uniform(philox(choice.sample_keys + 4 * row, uint32_t(i / 4)).word[i % 4]);
      drawn = v / choice.temperature - std::log(-std::log(u));
    }
    if (token < 0 || drawn > sampled) {
      sampled = drawn;
      token = i;
    }
    if (v > best) {
      second = best;
      best = v;
    } else if (v > second) {
      second = v;
    }
  }
  if (choice.given && choice.given[row] >= 0) token = choice.given[row];
  const double log_sum_exp = sum > 0 ? most + std::log(sum) : -INFINITY;
  auto probability = [&](float v) { return v == -INFINITY ? 0.0 : std::exp(double(v) - log_sum_exp); };
  op.scores.token[row] = token;
  op.scores.probability[row] = token >= 0 && token < op.vocab ? float(probability(value(token))) : 0.0f;
  op.scores.log_sum_exp[row] = float(log_sum_exp);
  if (op.scores.entropy) op.scores.entropy[row] = sum > 0 ? float(std::log(sum) - weighted / sum) : 0.0f;
  if (op.scores.margin) op.scores.margin[row] = float(probability(best) - probability(second));
}

}  // namespace

void score_tokens(const ScoreTokens& op) {
#pragma omp parallel for if (op.rows * op.vocab > 16384)
  for (int64_t row = 0; row < op.rows; ++row)
    with_type(op.dtype, [&](auto element) { score_row<decltype(element)>(op, row); });
}

}  // namespace refusion::cpu::REFUSION_ISA
