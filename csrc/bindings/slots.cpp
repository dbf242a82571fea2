// The ops that decide about slots: select_slots, accept_tokens.
#include "bindings/ops.h"

namespace refusion {
namespace {

float number(const Check& check, float value, const char* name) {
  if (value != value) bad_value(check.op, ": ", name, " must be a number, got nan");
  return value;
}

SlotRule rule_of(const std::string& rule) {
  if (rule == "first") return SlotRule::first;
  if (rule == "mean") return SlotRule::mean;
  if (rule == "minimum") return SlotRule::minimum;
  bad_value("select_slots: rule must be one of first, mean, minimum, got '", rule, "'");
}

// Three results that neither lie on one another nor on an input.
void all_apart(const Check& check, std::initializer_list<std::pair<const Tensor*, const char*>> results,
               std::initializer_list<std::pair<const Tensor*, const char*>> inputs) {
  for (const auto& out : results) {
    for (const auto& other : results)
      if (other.first < out.first) check.apart(*out.first, out.second, *other.first, other.second);
    for (const auto& in : inputs) check.apart(*out.first, out.second, *in.first, in.second);
  }
}

}  // namespace

void select_slots(const Tensor& scores, const Tensor& slot_offsets, const Tensor& sequence_offsets, float threshold,
                  const std::string& rule, const Tensor& chosen, const Tensor& counts, const Tensor& confidence) {
  Check check("select_slots");
  SelectSlots op{};
  op.scores = check.vector<float>(scores, "scores");
  op.tokens = scores.shape[0];
  op.slot_offsets = check.offsets(slot_offsets, "slot_offsets", op.tokens, "scores");
  op.slots = slot_offsets.shape[0] - 1;
  op.sequence_offsets = check.offsets(sequence_offsets, "sequence_offsets", op.slots, "slots");
  op.sequences = sequence_offsets.shape[0] - 1;
  op.threshold = number(check, threshold, "threshold");
  op.rule = rule_of(rule);
  op.chosen = check.result<int32_t>(chosen, "out.chosen", op.slots, "slots");
  op.counts = check.result<int32_t>(counts, "out.counts", op.sequences, "sequences");
  op.confidence = check.result<float>(confidence, "out.confidence", op.slots, "slots");
  all_apart(check, {{&chosen, "out.chosen"}, {&counts, "out.counts"}, {&confidence, "out.confidence"}},
            {{&scores, "scores"}, {&slot_offsets, "slot_offsets"}, {&sequence_offsets, "sequence_offsets"}});
  run(check, op);
}

void accept_tokens(const Tensor& probability, const Tensor& token, const Tensor& slot_offsets,
                   const Tensor& accepted_before, const Tensor& sequence_offsets, float threshold,
                   const Maybe& eos_token_ids, const Tensor& accepted, const Tensor& eos, const Tensor& run_length) {
  Check check("accept_tokens");
  AcceptTokens op{};
  op.probability = check.vector<float>(probability, "probability");
  op.tokens = probability.shape[0];
  op.token = check.vector<int64_t>(token, "token", op.tokens, "tokens of probability");
  op.slot_offsets = check.offsets(slot_offsets, "slot_offsets", op.tokens, "tokens");
  op.slots = slot_offsets.shape[0] - 1;
  op.accepted_before = check.vector<int32_t>(accepted_before, "accepted_before", op.slots, "slots");
  op.sequence_offsets = check.offsets(sequence_offsets, "sequence_offsets", op.slots, "slots");
  op.sequences = sequence_offsets.shape[0] - 1;
  op.threshold = number(check, threshold, "threshold");
  if (eos_token_ids) {
    op.eos_token_ids = check.vector<int64_t>(*eos_token_ids, "eos_token_ids");
    op.eos_count = eos_token_ids->shape[0];
  }
  op.accepted = check.result<int32_t>(accepted, "out.accepted", op.slots, "slots");
  op.eos = check.result<int32_t>(eos, "out.eos", op.slots, "slots");
  op.run = check.result<int32_t>(run_length, "out.run", op.sequences, "sequences");
  all_apart(check, {{&accepted, "out.accepted"}, {&eos, "out.eos"}, {&run_length, "out.run"}},
            {{&probability, "probability"}, {&token, "token"}, {&slot_offsets, "slot_offsets"},
             {&accepted_before, "accepted_before"}, {&sequence_offsets, "sequence_offsets"}});
  run(check, op);
}

}  // namespace refusion
