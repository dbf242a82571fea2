// The state of scoring one row of logits, fed block by block: shared by score_tokens and score_hidden.
// Sums run in float32 within a block and in double across blocks.
#pragma once
#include <cmath>

#include "cpu/simd.h"
#include "ops.h"
#include "sample.h"

namespace refusion::cpu::REFUSION_ISA {

// Elements of a block: its second and third reading, where needed, find it in the first-level cache.
constexpr int64_t kBlock = 2048;

constexpr double kLog2e = 1.4426950408889634, kLn2 = 0.6931471805599453;

// What one row asks for.
struct RowChoice {
  int64_t given;              // id to capture, or -1
  const int32_t* suppressed;  // `suppressed_count` ids
  int64_t suppressed_count;
  float temperature;
  const int64_t* sample_key;
  bool entropy, margin;  // whether they are wanted

  template <class Op>  // ScoreTokens or ScoreHidden
  RowChoice(const Op& op, int64_t row) : RowChoice(op.choice, op.scores, row) {}

 private:
  RowChoice(const TokenChoice& choice, const TokenScores& scores, int64_t row)
      : given(choice.given && choice.given[row] >= 0 ? choice.given[row] : -1),
        suppressed(choice.suppressed + (choice.suppressed_rows > 1 ? row * choice.suppressed_count : 0)),
        suppressed_count(choice.suppressed_count),
        temperature(choice.temperature),
        sample_key(choice.temperature > 0 ? choice.sample_keys + 4 * row : nullptr),
        entropy(scores.entropy),
        margin(scores.margin) {}
};

// A token id with its logit; id -1: none yet.
struct Candidate {
  float value = -INFINITY;
  int64_t id = -1;
};

// Sums of 2^t over ids, t = (logit - reference) * log2(e).
struct ScoreSums {
  float reference = -INFINITY;  // a logit near the greatest; -inf: nothing but -inf so far
  double sum = 0;               // of 2^t
  double weighted = 0;          // of t * 2^t, for the entropy
};

struct ScoreState {
  ScoreSums sums;
  Candidate best;            // greatest logit that may be chosen, lowest id
  float second = -INFINITY;  // second greatest, for the margin; equals the greatest on a tie
  Draw draw;
  float given_logit = -INFINITY;
};

// Adds n logits to the sums and returns the greatest. Without `kAll`, there is no weighted sum, and the sum is NaN
// where a logit is.
template <bool kAll, class T>
inline float sum_block(const T* x, int64_t n, ScoreSums* sums) {
  constexpr int64_t kAhead = 4096 / int64_t(sizeof(T));  // the next blocks arrive while this one is worked on
  const Floats reference = broadcast(sums->reference), log2e = broadcast(float(kLog2e)), floor = broadcast(-126.0f);
  Floats most = broadcast(-INFINITY), most_b = most;
  Floats sum = broadcast(0.0f), sum_b = sum, weighted = sum, weighted_b = sum;
  auto add = [&](Floats v, Floats* top, Floats* total, Floats* moment) {
    *top = at_least(v, *top);
    Floats t = (v - reference) * log2e;
    if (kAll || !kExp2TakesAll) t = at_least(t, floor);
    const Floats e = exp2(t);
    *total = *total + e;
    if (kAll) *moment = fma(e, t, *moment);
  };
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    __builtin_prefetch(x + i + kAhead);
    if (sizeof(T) * 2 * kLanes > 64) __builtin_prefetch(x + i + kAhead + kLanes);
    add(load_half(x + i, 0), &most, &sum, &weighted);
    add(load_half(x + i, 1), &most_b, &sum_b, &weighted_b);
  }
  for (; i + kLanes <= n; i += kLanes) add(load(x + i), &most, &sum, &weighted);
  if (i < n) add(load_part(x + i, n - i, -INFINITY), &most_b, &sum_b, &weighted_b);
  sums->sum += double(reduce_add(sum + sum_b));
  if (kAll) sums->weighted += double(reduce_add(weighted + weighted_b));
  return reduce_max(at_least(most, most_b));
}

template <class T>
inline float max_block(const T* x, int64_t n) {
  Floats most = broadcast(-INFINITY), most_b = most;
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    most = at_least(load(x + i), most);
    most_b = at_least(load(x + i + kLanes), most_b);
  }
  for (; i + kLanes <= n; i += kLanes) most = at_least(load(x + i), most);
  if (i < n) most = at_least(load_part(x + i, n - i, -INFINITY), most);
  return reduce_max(at_least(most, most_b));
}

// Expresses what is summed so far relative to another reference.
inline void move_reference(ScoreSums* sums, float reference) {
  const double shift = (double(sums->reference) - double(reference)) * kLog2e;
  sums->reference = reference;
  if (sums->sum == 0) return;
  const double factor = std::exp2(shift);
  sums->weighted = (sums->weighted + shift * sums->sum) * factor;
  sums->sum *= factor;
}

// Where the block's first logit of this value is.
template <class T>
inline int64_t find_in_block(const T* x, int64_t n, float value) {
  int64_t at = 0;
  while (at + kLanes <= n && !equal(load(x + at), broadcast(value))) at += kLanes;
  while (to_float(x[at]) != value) ++at;
  return at;
}

// Best and second best of the block into the state. NaN never wins.
template <class T>
inline void rank_block(const T* x, int64_t n, int64_t first_id, ScoreState* state) {
  const Floats least = broadcast(-INFINITY);
  Floats high = least, low = least;
  auto see = [&](Floats v) {
    v = at_least(v, least);
    low = at_least(at_most(v, high), low);
    high = at_least(v, high);
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) see(load(x + i));
  if (i < n) see(load_part(x + i, n - i, -INFINITY));
  float highs[kLanes], lows[kLanes];
  store(highs, high);
  store(lows, low);
  float best = -INFINITY, second = -INFINITY;
  for (int lane = 0; lane < kLanes; ++lane) {
    const float runner_up = highs[lane] > best ? best : highs[lane];
    best = highs[lane] > best ? highs[lane] : best;
    const float other = lows[lane] > runner_up ? lows[lane] : runner_up;
    second = other > second ? other : second;
  }
  if (best > state->best.value) {
    second = state->best.value > second ? state->best.value : second;
    state->best = {best, first_id + find_in_block(x, n, best)};
  } else {
    second = best > second ? best : second;
  }
  state->second = second > state->second ? second : state->second;
}

// Best, second best and sample among the ids of the block, of which all may be chosen; most: the greatest logit.
template <class T>
inline void choose_in_block(const T* x, int64_t n, int64_t first_id, float most, const RowChoice& choice,
                            ScoreState* state) {
  if (choice.margin && most > state->second) rank_block(x, n, first_id, state);
  else if (most > state->best.value) state->best = {most, first_id + find_in_block(x, n, most)};
  if (choice.sample_key && most > -INFINITY)
    sample_block(x, n, first_id, choice.temperature, choice.sample_key, &state->draw);
}

// Sums of the block into `sums`; returns its greatest logit.
template <class T>
inline float add_sums(const T* x, int64_t n, bool entropy, ScoreSums* sums) {
  // A maximum this far (in log2) above the reference would cost accuracy, and later overflow.
  constexpr float kTooHigh = 8;
  if (sums->reference == -INFINITY) sums->reference = max_block(x, n < kBlock / 8 ? n : kBlock / 8);
  if (sums->reference == -INFINITY) sums->reference = max_block(x, n);
  if (sums->reference == -INFINITY) return -INFINITY;
  auto add = [&] {
    const double sum = sums->sum;
    if (!entropy) {
      const float most = sum_block<false>(x, n, sums);
      if (!std::isnan(sums->sum)) return most;
      sums->sum = sum;
    }
    return sum_block<true>(x, n, sums);
  };
  const ScoreSums before = *sums;
  const float most = add();
  if ((most - sums->reference) * float(kLog2e) > kTooHigh) {
    *sums = before;
    move_reference(sums, most);
    add();
  }
  return most;
}

// Takes the logits of ids first_id .. first_id + n, n <= kBlock and first_id a multiple of 4.
template <class T>
inline void add_block(const T* x, int64_t n, int64_t first_id, const RowChoice& choice, ScoreState* state) {
  const float most = add_sums(x, n, choice.entropy, &state->sums);
  auto inside = [&](int64_t id) { return id >= first_id && id < first_id + n; };
  if (inside(choice.given)) state->given_logit = to_float(x[choice.given - first_id]);

  bool some_suppressed = false;
  for (int64_t i = 0; i < choice.suppressed_count; ++i) some_suppressed |= inside(choice.suppressed[i]);
  if (!some_suppressed) return choose_in_block(x, n, first_id, most, choice, state);
  float allowed[kBlock];
  for (int64_t i = 0; i < n; ++i) allowed[i] = to_float(x[i]);
  for (int64_t i = 0; i < choice.suppressed_count; ++i)
    if (inside(choice.suppressed[i])) allowed[choice.suppressed[i] - first_id] = -INFINITY;
  choose_in_block(allowed, n, first_id, max_block(allowed, n), choice, state);
}

inline void merge(ScoreSums* sums, ScoreSums other) {
  if (other.reference == -INFINITY) return;
  if (other.reference > sums->reference) move_reference(sums, other.reference);
  else move_reference(&other, sums->reference);
  sums->sum += other.sum;
  sums->weighted += other.weighted;
}

// Whether a (Candidate or Draw) is to be taken before b: the lowest id wins ties.
template <class T>
inline bool goes_before(const T& a, const T& b) {
  if (a.id < 0 || b.id < 0) return a.id >= 0;
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// Adds the state of other ids of the same row.
inline void merge(ScoreState* state, const ScoreState& other) {
  merge(&state->sums, other.sums);
  const float lesser = other.best.value > state->best.value ? state->best.value : other.best.value;
  state->second = state->second > other.second ? state->second : other.second;
  state->second = state->second > lesser ? state->second : lesser;
  if (goes_before(other.best, state->best)) state->best = other.best;
  if (goes_before(other.draw, state->draw)) state->draw = other.draw;
  if (other.given_logit > state->given_logit) state->given_logit = other.given_logit;
}

// Writes the results of a row. A logit of +inf takes all the probability, so that nothing becomes NaN.
inline void deliver(const ScoreState& state, const RowChoice& choice, const TokenScores& scores, int64_t row) {
  const ScoreSums& sums = state.sums;
  const bool empty = sums.reference == -INFINITY;
  auto probability = [&](float logit) {
    if (empty || !(logit > -INFINITY)) return 0.0;
    const double p = std::exp2((double(logit) - double(sums.reference)) * kLog2e) / sums.sum;
    return p < 1 ? p : 1;
  };
  Candidate token = choice.sample_key ? Candidate{state.draw.logit, state.draw.id} : state.best;
  if (choice.given >= 0) token = {state.given_logit, choice.given};
  scores.token[row] = token.id;
  scores.probability[row] = float(probability(token.value));
  scores.log_sum_exp[row] = empty ? -INFINITY : float(double(sums.reference) + std::log2(sums.sum) * kLn2);
  if (scores.entropy) {
    const double entropy = empty ? 0 : (std::log2(sums.sum) - sums.weighted / sums.sum) * kLn2;
    scores.entropy[row] = entropy > 0 ? float(entropy) : 0.0f;
  }
  if (scores.margin) scores.margin[row] = float(probability(state.best.value) - probability(state.second));
}

}  // namespace refusion::cpu::REFUSION_ISA
