#include <omp.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/cuda_device.h"
#include "bindings/ops.h"

namespace py = pybind11;
using namespace refusion;

namespace {

py::list compiled_isas() {
  py::list names;
  for (int level = 0; level < 4; ++level)
    if (cpu::compiled(cpu::Isa(level))) names.append(cpu::name_of(cpu::Isa(level)));
  return names;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Compiled kernels; the functions of refusion_ext wrap them.";
  m.attr("__version__") = REFUSION_VERSION;
  py::register_local_exception<NoKernel>(m, "NoKernel", PyExc_NotImplementedError);
  py::register_local_exception<CudaUnavailable>(m, "CudaUnavailableError", PyExc_RuntimeError);
  m.def("score_tokens", &score_tokens);
  m.def("score_hidden", &score_hidden);
  m.def("linear", &linear);
  m.def("select_slots", &select_slots);
  m.def("accept_tokens", &accept_tokens);
  m.def("rope_append", &rope_append);
  m.def("attend", &attend);
  m.def("compact_rows", &compact_rows);
  m.def("isa_compiled", &compiled_isas);
  m.def("isa_found", [] { return cpu::name_of(cpu::found_isa()); });
  m.def("isa_in_use", [] { return cpu::name_of(cpu::kernels().isa); });
  m.def("threads", &omp_get_max_threads);
  m.def("cuda_build", [] {
    const CudaBuild build = cuda_build();
    return py::make_tuple(build.built, build.reason, build.toolkit, build.code);
  });
}
