// The ops of one instruction set: what every file of this folder defines and table.cpp collects.
#pragma once
#include "cpu/kernels.h"

namespace refusion::cpu::REFUSION_ISA {

void score_tokens(const ScoreTokens& op);
void score_hidden(const ScoreHidden& op);
void linear(const Linear& op);
void select_slots(const SelectSlots& op);
void accept_tokens(const AcceptTokens& op);
void rope_append(const RopeAppend& op);
void attend(const Attend& op);
void compact_rows(const CompactRows& op);

const Kernels& table();

}  // namespace refusion::cpu::REFUSION_ISA
