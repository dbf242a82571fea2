#include "bindings/backend.h"

namespace py = pybind11;

namespace refusion {
namespace {

// The one place that knows which device has kernels.
template <class Op>
void dispatch(const Check& call, const Op& op, void (*cpu::Kernels::*kernel)(const Op&)) {
  switch (call.device.type) {
    case dlpack::cpu: {
      const cpu::Kernels& kernels = cpu::kernels();
      const py::gil_scoped_release release;
      return (kernels.*kernel)(op);
    }
    default: throw NoKernel(std::string(call.op) + ": no kernels for " + call.first->device_name());
  }
}

}  // namespace

void run(const Check& call, const ScoreTokens& op) { dispatch(call, op, &cpu::Kernels::score_tokens); }
void run(const Check& call, const ScoreHidden& op) { dispatch(call, op, &cpu::Kernels::score_hidden); }
void run(const Check& call, const SelectSlots& op) { dispatch(call, op, &cpu::Kernels::select_slots); }
void run(const Check& call, const AcceptTokens& op) { dispatch(call, op, &cpu::Kernels::accept_tokens); }
void run(const Check& call, const RopeAppend& op) { dispatch(call, op, &cpu::Kernels::rope_append); }
void run(const Check& call, const Attend& op) { dispatch(call, op, &cpu::Kernels::attend); }
void run(const Check& call, const CompactRows& op) { dispatch(call, op, &cpu::Kernels::compact_rows); }

}  // namespace refusion
