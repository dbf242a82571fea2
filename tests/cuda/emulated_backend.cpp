// Twin of csrc/bindings/backend.cpp for tests: arrays in host memory go to the CUDA kernels, which run emulated. Every
// check of the bindings stays in front of them. No CPU kernel is linked.
#include <cstring>
#include <vector>

#include "bindings/backend.h"
#include "cuda/launchers.h"
#include "emulation/runtime.h"

namespace refusion {
namespace {

constexpr int kMultiprocessors = 3;  // few, so that small inputs are split and large ones are not

template <class Op>
void run_emulated(const Op& op) {
  const size_t bytes = cuda::workspace_bytes(op, kMultiprocessors);
  // Of its exact size and full of NaN: a kernel that reads what it has not written, or beyond, shows.
  std::vector<char> workspace(bytes, char(0xff));
  int error;
  try {
    error = cuda::launch(op, {nullptr, bytes ? workspace.data() : nullptr, kMultiprocessors});
  } catch (const emulation::Error& fault) {
    throw std::runtime_error(fault.what());
  }
  if (error) throw std::runtime_error("launch failed: " + std::to_string(error));
}

}  // namespace

void run(const Check&, const ScoreTokens& op) { run_emulated(op); }
void run(const Check&, const ScoreHidden& op) { run_emulated(op); }
void run(const Check& call, const Linear&) { throw NoKernel(std::string(call.op) + ": no CUDA kernel"); }
void run(const Check&, const SelectSlots& op) { run_emulated(op); }
void run(const Check&, const AcceptTokens& op) { run_emulated(op); }
void run(const Check&, const RopeAppend& op) { run_emulated(op); }
void run(const Check&, const Attend& op) { run_emulated(op); }
void run(const Check&, const CompactRows& op) { run_emulated(op); }

// What module.cpp asks of the CPU kernels.
namespace cpu {

bool compiled(Isa) { return false; }
Isa found_isa() { return Isa::baseline; }
const char* name_of(Isa) { return "emulated"; }
const Kernels& kernels() {
  static const Kernels none{};
  return none;
}

}  // namespace cpu
}  // namespace refusion
