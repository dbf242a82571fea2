// Workspace by itself, for arrays on the CPU: a module that fills one and says where it lay.
#include <cstring>

#include "bindings/workspace.h"

namespace py = pybind11;

PYBIND11_MODULE(workspace_harness, m) {
  m.def("fill", [](const refusion::Tensor& array, size_t bytes) {
    refusion::Check check("harness");
    check.rank(array, "array", {"entries"});
    const refusion::Workspace workspace(check, bytes);
    if (workspace.data()) std::memset(workspace.data(), 0xff, bytes);
    return py::make_tuple(reinterpret_cast<uintptr_t>(workspace.data()), array.api != nullptr);
  });
}
