// The state of scoring one row of logits: shared by score_tokens and score_hidden. Sums run in float32; states of parts
// of a row are merged in a fixed order, so that a result depends on the launch alone.
#pragma once
#include "cuda/portable.cuh"
#include "refusion/philox.h"
#include "refusion/score_tokens.h"

namespace refusion::cuda {

constexpr float kLn2 = 0.6931471805599453f;
constexpr float kMostNoise = 16.65f;  // Gumbel noise of the greatest uniform, 1 - 2^-24

struct ScoreState {
  float reference;           // greatest logit so far; -inf: nothing but -inf
  float sum;                 // of 2^t, t = (logit - reference) * log2(e)
  float weighted;            // of t * 2^t
  float best, second;        // greatest logits that may be chosen
  int best_id;               // the lowest with `best`; -1: none
  float drawn, drawn_logit;  // greatest logit / temperature + noise
  int drawn_id;
  float given;  // logit of the given id
};

__device__ __forceinline__ ScoreState empty_state() {
  return {-INFINITY, 0.0f, 0.0f, -INFINITY, -INFINITY, -1, -INFINITY, -INFINITY, -1, -INFINITY};
}

// What one row asks for.
struct RowChoice {
  int64_t given;  // id to capture, or -1
  float temperature;
  const int64_t* sample_key;

  __device__ __forceinline__ RowChoice(const TokenChoice& choice, int64_t row)
      : given(choice.given != nullptr && choice.given[row] >= 0 ? choice.given[row] : -1),
        temperature(choice.temperature),
        sample_key(choice.temperature > 0 ? choice.sample_keys + 4 * row : nullptr) {}
};

// Expresses the sums relative to a reference that is not less.
__device__ __forceinline__ void raise_reference(ScoreState& state, float reference) {
  const float shift = (state.reference - reference) * kLog2e;
  if (shift < 0) {
    const bool lost = shift < -126.0f;  // also where nothing was summed yet: no infinity times zero
    const float factor = exp2_approximate(fmaxf(shift, -126.0f));
    state.weighted = lost ? 0.0f : (state.weighted + shift * state.sum) * factor;
    state.sum = lost ? 0.0f : state.sum * factor;
    state.reference = reference;
  }
}

// Adds a logit not above the reference. NaN, of a logit or of a difference of infinities, becomes the floor.
__device__ __forceinline__ void add_logit(ScoreState& state, float logit) {
  const float t = fmaxf((logit - state.reference) * kLog2e, -126.0f), power = exp2_approximate(t);
  state.sum += power;
  state.weighted += t * power;
}

// A logit that may be chosen, in ascending order of ids.
__device__ __forceinline__ void rank_logit(ScoreState& state, float logit, int id) {
  if (logit > state.best) {
    state.second = state.best;
    state.best = logit;
    state.best_id = id;
  } else {
    state.second = fmaxf(state.second, logit);
  }
}

struct Draw {
  float value, logit;  // greatest logit / temperature + noise, and its logit
  int id;
};

// Draws among the logits of ids 4 * block .. 4 * block + 3; -inf: not to be chosen. Not inlined: kernels that score
// from registers would repeat it dozens of times. By value: what is passed by address would leave the registers.
static __device__ __noinline__ Draw draw_four(Draw draw, float4 logits, uint32_t block, float temperature,
                                              const int64_t* key) {
  const Philox noise = philox(key, block);
  const float logit[4] = {logits.x, logits.y, logits.z, logits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float value = logit[i] / temperature - logf(-logf(uniform(noise.word[i])));
    if (logit[i] > -INFINITY && value > draw.value) draw = {value, logit[i], int(4 * block) + i};
  }
  return draw;
}

__device__ __forceinline__ void draw_logits(ScoreState& state, const float (&logit)[4], uint32_t block,
                                            const RowChoice& choice) {
  const float top = fmaxf(fmaxf(logit[0], logit[1]), fmaxf(logit[2], logit[3]));
  if (top > -INFINITY && top / choice.temperature + kMostNoise > state.drawn) {
    const Draw draw =
        draw_four({state.drawn, state.drawn_logit, state.drawn_id}, make_float4(logit[0], logit[1], logit[2], logit[3]),
                  block, choice.temperature, choice.sample_key);
    state.drawn = draw.value;
    state.drawn_logit = draw.logit;
    state.drawn_id = draw.id;
  }
}

// Whether candidate a is to be taken before b: the lowest id wins ties.
__device__ __forceinline__ bool goes_before(float a, int a_id, float b, int b_id) {
  return a_id >= 0 && (b_id < 0 || a > b || (a == b && a_id < b_id));
}

// Takes the candidates and the given logit of other ids of the same row.
__device__ __forceinline__ void merge_candidates(ScoreState& state, const ScoreState& other) {
  state.second = fmaxf(fmaxf(state.second, other.second), fminf(state.best, other.best));
  if (goes_before(other.best, other.best_id, state.best, state.best_id)) {
    state.best = other.best;
    state.best_id = other.best_id;
  }
  if (goes_before(other.drawn, other.drawn_id, state.drawn, state.drawn_id)) {
    state.drawn = other.drawn;
    state.drawn_logit = other.drawn_logit;
    state.drawn_id = other.drawn_id;
  }
  state.given = fmaxf(state.given, other.given);
}

// Adds the state of other ids of the same row.
__device__ __forceinline__ void merge_states(ScoreState& state, ScoreState other) {
  const float reference = fmaxf(state.reference, other.reference);
  raise_reference(state, reference);
  raise_reference(other, reference);
  state.sum += other.sum;
  state.weighted += other.weighted;
  merge_candidates(state, other);
}

// The merged state of `kLanes` neighbouring lanes, in each of them: first one reference for all, then plain sums.
template <int kLanes = 32>
__device__ __forceinline__ ScoreState merge_lanes(ScoreState state) {
  float reference = state.reference;
#pragma unroll
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2)
    reference = fmaxf(reference, __shfl_xor_sync(kAllLanes, reference, lanes));
  raise_reference(state, reference);
#pragma unroll
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    const auto from = [&](auto x) { return __shfl_xor_sync(kAllLanes, x, lanes); };
    state.sum += from(state.sum);
    state.weighted += from(state.weighted);
    ScoreState other = empty_state();
    other.best = from(state.best);
    other.second = from(state.second);
    other.best_id = from(state.best_id);
    other.drawn = from(state.drawn);
    other.drawn_logit = from(state.drawn_logit);
    other.drawn_id = from(state.drawn_id);
    other.given = from(state.given);
    merge_candidates(state, other);
  }
  return state;
}

// Writes the results of a row.
__device__ __forceinline__ void deliver(const ScoreState& state, const RowChoice& choice, const TokenScores& scores,
                                        int64_t row) {
  const bool empty = state.reference == -INFINITY;
  const auto probability = [&](float logit) {
    if (empty || !(logit > -INFINITY)) return 0.0f;
    const float p = exp2_approximate((logit - state.reference) * kLog2e) / state.sum;
    return p < 1.0f ? p : 1.0f;  // an infinite logit takes all of it
  };
  int64_t token = choice.sample_key != nullptr ? state.drawn_id : state.best_id;
  float logit = choice.sample_key != nullptr ? state.drawn_logit : state.best;
  if (choice.given >= 0) {
    token = choice.given;
    logit = state.given;
  }
  scores.token[row] = token;
  scores.probability[row] = probability(logit);
  scores.log_sum_exp[row] = empty ? -INFINITY : state.reference + log2f(state.sum) * kLn2;
  if (scores.entropy != nullptr) {
    const bool certain = empty || state.reference == INFINITY;
    const float entropy = certain ? 0.0f : (log2f(state.sum) - state.weighted / state.sum) * kLn2;
    scores.entropy[row] = fmaxf(entropy, 0.0f);
  }
  if (scores.margin != nullptr) scores.margin[row] = probability(state.best) - probability(state.second);
}

// Merges the states of the `count` parts of each row, in order, and delivers (score_merge.cu). Returns a cudaError_t.
int launch_merge(const ScoreState* parts, int64_t rows, int count, const TokenChoice& choice, const TokenScores& scores,
                 void* stream);

}  // namespace refusion::cuda
