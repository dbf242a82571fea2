// Where a checked call goes: the kernels of the device that its arguments lie on.
#pragma once
#include <stdexcept>

#include "bindings/check.h"
#include "cpu/kernels.h"

namespace refusion {

// No kernels for the device; the Python layer then takes the oracle.
struct NoKernel : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void run(const Check& call, const ScoreTokens& op);
void run(const Check& call, const ScoreHidden& op);
void run(const Check& call, const Linear& op);  // CPU only
void run(const Check& call, const SelectSlots& op);
void run(const Check& call, const AcceptTokens& op);
void run(const Check& call, const RopeAppend& op);
void run(const Check& call, const Attend& op);
void run(const Check& call, const CompactRows& op);

}  // namespace refusion
