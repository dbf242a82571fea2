// One function an op: checks every argument, fills the op's struct and runs it.
#pragma once
#include "bindings/backend.h"

namespace refusion {

void score_tokens(const Tensor& logits, const Maybe& given, const Maybe& suppressed, float temperature,
                  const Maybe& sample_keys, const Tensor& token, const Tensor& probability, const Tensor& log_sum_exp,
                  const Maybe& entropy, const Maybe& margin);
void score_hidden(const Tensor& hidden, const Tensor& weight, const Maybe& given, const Maybe& suppressed,
                  float temperature, const Maybe& sample_keys, const Tensor& token, const Tensor& probability,
                  const Tensor& log_sum_exp, const Maybe& entropy, const Maybe& margin);
void linear(const Tensor& x, const Tensor& weight, const Maybe& bias, const Maybe& norm, float norm_epsilon,
            bool gated, const Maybe& residual, const Tensor& out);
void select_slots(const Tensor& scores, const Tensor& slot_offsets, const Tensor& sequence_offsets, float threshold,
                  const std::string& rule, const Tensor& chosen, const Tensor& counts, const Tensor& confidence);
void accept_tokens(const Tensor& probability, const Tensor& token, const Tensor& slot_offsets,
                   const Tensor& accepted_before, const Tensor& sequence_offsets, float threshold,
                   const Maybe& eos_token_ids, const Tensor& accepted, const Tensor& eos, const Tensor& run_length);
void rope_append(const Tensor& qkv, const Maybe& q_norm, const Maybe& k_norm, const Tensor& cosine, const Tensor& sine,
                 const Tensor& position_ids, const Tensor& rows, const Tensor& sequence_offsets, const Tensor& k_cache,
                 const Tensor& v_cache, float norm_epsilon, const Tensor& out);
void attend(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& sequence_offsets,
            const Tensor& committed, const Tensor& window_begin, const Tensor& window_end, std::optional<float> scale,
            const Tensor& out);
void compact_rows(const Tensor& cache, const Tensor& sources, const Tensor& source_offsets, const Tensor& destination);

}  // namespace refusion
