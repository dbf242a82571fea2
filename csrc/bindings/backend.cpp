#include "bindings/backend.h"

#include "bindings/cuda_device.h"
#include "bindings/workspace.h"

namespace py = pybind11;

namespace refusion {
namespace {

template <class Op>
using OnCpu = void (*cpu::Kernels::*)(const Op&);
template <class Op>
using OnCuda = cuda::Launcher<Op> cuda::Kernels::*;

// Queues the kernel on the framework's stream. Nothing here waits for the device.
template <class Op>
void launch(const Check& call, const Op& op, OnCuda<Op> member) {
  const CudaDevice device(call);
  const cuda::Launcher<Op>& launcher = device.kernels().*member;
  const Workspace workspace(call, launcher.workspace_bytes(op, device.multiprocessors()));
  const cuda::Launch where{device.stream(), workspace.data(), device.multiprocessors()};
  int error;
  {
    const py::gil_scoped_release release;  // a full queue makes a launch wait
    error = launcher.launch(op, where);
  }
  if (error != 0) throw std::runtime_error(std::string(call.op) + ": the launch failed with " + device.describe(error));
}

template <class Op>
void dispatch(const Check& call, const Op& op, OnCpu<Op> kernel) {
  if (call.device.type != dlpack::cpu)
    throw NoKernel(std::string(call.op) + ": no kernels for " + call.first->device_name());
  const cpu::Kernels& kernels = cpu::kernels();
  const py::gil_scoped_release release;
  (kernels.*kernel)(op);
}

// The one place that knows which device has kernels.
template <class Op>
void dispatch(const Check& call, const Op& op, OnCpu<Op> kernel, OnCuda<Op> launcher) {
  if (has_cuda_kernels(call.device)) return launch(call, op, launcher);
  dispatch(call, op, kernel);
}

}  // namespace

void run(const Check& call, const ScoreTokens& op) {
  dispatch(call, op, &cpu::Kernels::score_tokens, &cuda::Kernels::score_tokens);
}
void run(const Check& call, const ScoreHidden& op) {
  dispatch(call, op, &cpu::Kernels::score_hidden, &cuda::Kernels::score_hidden);
}
void run(const Check& call, const Linear& op) { dispatch(call, op, &cpu::Kernels::linear); }
void run(const Check& call, const SelectSlots& op) {
  dispatch(call, op, &cpu::Kernels::select_slots, &cuda::Kernels::select_slots);
}
void run(const Check& call, const AcceptTokens& op) {
  dispatch(call, op, &cpu::Kernels::accept_tokens, &cuda::Kernels::accept_tokens);
}
void run(const Check& call, const RopeAppend& op) {
  dispatch(call, op, &cpu::Kernels::rope_append, &cuda::Kernels::rope_append);
}
void run(const Check& call, const Attend& op) {
  dispatch(call, op, &cpu::Kernels::attend, &cuda::Kernels::attend);
}
void run(const Check& call, const CompactRows& op) {
  dispatch(call, op, &cpu::Kernels::compact_rows, &cuda::Kernels::compact_rows);
}

}  // namespace refusion
