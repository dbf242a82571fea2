// Ops with products in AMX tiles, and those of the same names that they leave to vectors.
#pragma once
#include "refusion/attend.h"
#include "refusion/linear.h"
#include "refusion/score_hidden.h"

namespace refusion::cpu {

namespace avx512 {
void attend(const Attend& op);
void linear(const Linear& op);
void score_hidden(const ScoreHidden& op);
}  // namespace avx512

namespace amx {
void attend(const Attend& op);
void linear(const Linear& op);
void score_hidden(const ScoreHidden& op);
}  // namespace amx

}  // namespace refusion::cpu
