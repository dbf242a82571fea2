#include "bindings/tensor.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace py = pybind11;

namespace refusion {
namespace {

using dlpack::ExchangeApi;

// What is known of a Python type. A program passes a handful of types, so a scan beats any map; types stay alive here.
struct KnownType {
  PyTypeObject* type;
  const ExchangeApi* api;
  const char* read_only;
  bool torch;  // its arrays may require grad or be negated views
  bool numpy;  // its arrays are cheaper to view through the buffer protocol
};
constexpr int kKnownTypes = 16;
KnownType known_types[kKnownTypes];
int known_count = 0;

KnownType inspect(PyTypeObject* type) {
  const py::handle object(reinterpret_cast<PyObject*>(type));
  const bool is_numpy = !std::strcmp(type->tp_name, "numpy.ndarray");
  KnownType known{type, nullptr, nullptr, py::hasattr(object, "requires_grad"), is_numpy};
  const py::object capsule = py::getattr(object, "__dlpack_c_exchange_api__", py::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) {
    known.api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    while (known.api && known.api->version.major != dlpack::kMajor) known.api = known.api->older;
    if (known.api && !known.api->tensor_from_object) known.api = nullptr;
  }
  // JAX exports its arrays without saying that they must not change.
  const auto module = py::str(py::getattr(object, "__module__", py::str(""))).cast<std::string>();
  if (module.rfind("jax", 0) == 0) known.read_only = "is a JAX array, which cannot change in place";
  return known;
}

KnownType known_type(PyTypeObject* type) {
  for (int i = 0; i < known_count; ++i)
    if (known_types[i].type == type) return known_types[i];
  const KnownType known = inspect(type);
  if (known_count < kKnownTypes) {
    Py_INCREF(type);
    known_types[known_count++] = known;
  }
  return known;
}

PyObject* interned(const char* name) { return PyUnicode_InternFromString(name); }

bool holds(PyObject* answer) {
  const bool yes = answer == Py_True;
  Py_XDECREF(answer);
  PyErr_Clear();  // arrays without the attribute
  return yes;
}

bool requires_grad(PyObject* object) {
  static PyObject* const name = interned("requires_grad");
  return holds(PyObject_GetAttr(object, name));
}

bool is_negated(PyObject* object) {
  static PyObject* const name = interned("is_neg");
  return holds(PyObject_CallMethodNoArgs(object, name));
}

bool grad_mode() {
  static PyObject* const ask = py::object(py::module_::import("torch").attr("is_grad_enabled")).release().ptr();
  return holds(PyObject_CallNoArgs(ask));
}

// What torch hands out without a word, but no kernel can honour. Conjugated views are complex: their dtype is refused.
const char* torch_problem(PyObject* object) {
  if (requires_grad(object) && grad_mode())
    return "requires grad, but the kernels have no backward: call them under torch.no_grad() or detach() it first";
  if (is_negated(object)) return "is a negated view: call resolve_neg() on it";
  return nullptr;
}

py::object export_capsule(const py::object& source) {
  const py::object exporter = source.attr("__dlpack__");
  try {
    return exporter(py::arg("max_version") = py::make_tuple(dlpack::kMajor, dlpack::kMinor));
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    return exporter();  // from before version 1: knows no max_version
  }
}

// numpy holds bfloat16 (of ml_dtypes), but does not export it.
bool is_numpy_bfloat16(py::handle object) {
  return !std::strcmp(Py_TYPE(object.ptr())->tp_name, "numpy.ndarray") &&
         py::str(object.attr("dtype")).cast<std::string>() == "bfloat16";
}

std::string exporter_said(const py::error_already_set& error) {
  return "cannot be read through DLPack: " + py::str(error.value()).cast<std::string>();
}

}  // namespace

Tensor::~Tensor() {
  if (managed_ && managed_->deleter) managed_->deleter(managed_);
  if (versioned_ && versioned_->deleter) versioned_->deleter(versioned_);
}

Tensor::Tensor(Tensor&& other) noexcept
    : data(other.data), device(other.device), dtype(other.dtype), rank(other.rank), read_only(other.read_only),
      api(other.api), source(other.source), torch(other.torch), problem(std::move(other.problem)),
      managed_(std::exchange(other.managed_, nullptr)), versioned_(std::exchange(other.versioned_, nullptr)) {
  std::copy(other.shape, other.shape + kMaxRank, shape);
  std::copy(other.strides, other.strides + kMaxRank, strides);
}

void Tensor::load(py::handle object) {
  const KnownType known = known_type(Py_TYPE(object.ptr()));
  api = known.api;
  source = object;
  torch = known.torch;
  read_only = known.read_only;
  if (known.numpy && load_buffer(object)) return;
  try {
    if (api == nullptr) return load_capsule(object, known.torch);
    dlpack::DLTensor tensor;
    if (api->tensor_from_object(object.ptr(), &tensor) != 0) throw py::error_already_set();
    take(tensor);
  } catch (const py::error_already_set& error) {
    problem = exporter_said(error);
    return;
  }
  if (known.torch && dtype.code != dlpack::code_int)  // integers neither require grad nor are negated lazily
    if (const char* unusable = torch_problem(object.ptr())) problem = unusable;
}

// A tenth of the cost of a capsule, which counts for the small index arrays of a decode loop. False where the elements
// have no format of the protocol (bfloat16) or lie askew: the capsule's exporter then has the say. The view is given
// back at once, since the caller's argument keeps the array alive.
bool Tensor::load_buffer(py::handle object) {
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_RECORDS_RO) != 0) {
    PyErr_Clear();
    return false;
  }
  const char format = view.format[0] != '\0' && view.format[1] == '\0' ? view.format[0] : '\0';
  const bool integer = std::strchr("bhilq", format), floating = std::strchr("efd", format);
  bool usable = format != '\0' && (integer || floating);
  for (int i = 0; i < view.ndim; ++i) usable = usable && view.strides[i] % view.itemsize == 0;
  if (usable) {
    data = static_cast<char*>(view.buf);
    dtype = {uint8_t(integer ? dlpack::code_int : dlpack::code_float), uint8_t(8 * view.itemsize), 1};
    rank = view.ndim;
    for (int i = 0; i < std::min(rank, kMaxRank); ++i) {
      shape[i] = view.shape[i];
      strides[i] = view.strides[i] / view.itemsize;
    }
    if (view.readonly) read_only = "is read-only";
  }
  PyBuffer_Release(&view);
  return usable;
}

void Tensor::load_capsule(py::handle object, bool torch) {
  if (!py::hasattr(object, "__dlpack__")) {
    problem = "must be an array that speaks DLPack, got " + std::string(Py_TYPE(object.ptr())->tp_name);
    return;
  }
  auto source = py::reinterpret_borrow<py::object>(object);
  if (torch) {
    if (const char* unusable = torch_problem(object.ptr())) {
      problem = unusable;
      return;
    }
    if (requires_grad(object.ptr())) source = object.attr("detach")();  // torch exports no others, in any mode
  }
  py::object capsule;
  bool bits_of_bfloat16 = false;
  try {
    capsule = export_capsule(source);
  } catch (const py::error_already_set&) {
    if (!is_numpy_bfloat16(object)) throw;
    bits_of_bfloat16 = true;
    capsule = export_capsule(object.attr("view")("uint16"));
  }
  // Renaming a capsule makes its content the consumer's to delete: DLPack's rule.
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    versioned_ = static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
    if (versioned_->version.major != dlpack::kMajor) {
      problem = "speaks DLPack " + std::to_string(versioned_->version.major) + ", known is version 1";
      return;
    }
    if (!read_only && versioned_->flags & dlpack::kReadOnly) read_only = "is read-only";
    take(versioned_->tensor);
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    managed_ = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor");
    take(managed_->tensor);
  } else {
    problem = "returned no DLPack capsule from __dlpack__";
  }
  if (bits_of_bfloat16) dtype.code = dlpack::code_bfloat;
}

void Tensor::take(const dlpack::DLTensor& tensor) {
  device = tensor.device;
  if (device.type == dlpack::cuda_host) device = {dlpack::cpu, 0};  // pinned memory
  dtype = tensor.dtype;
  rank = tensor.ndim;
  const int axes = std::min(rank, kMaxRank);
  std::copy(tensor.shape, tensor.shape + axes, shape);
  if (tensor.strides != nullptr) {
    std::copy(tensor.strides, tensor.strides + axes, strides);
  } else {
    for (int64_t i = axes - 1, step = 1; i >= 0; step *= shape[i--]) strides[i] = step;
  }
  if (tensor.data != nullptr) data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  else if (!empty()) problem = "has no data: a fake tensor?";
}

bool Tensor::empty() const {
  return std::find(shape, shape + std::min(rank, kMaxRank), 0) != shape + std::min(rank, kMaxRank);
}

std::string Tensor::dtype_name() const {
  static const char* const names[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  if (dtype.code == dlpack::code_bool) return "bool";
  const std::string lanes = dtype.lanes == 1 ? "" : "x" + std::to_string(dtype.lanes);
  return (dtype.code < dlpack::code_bool ? names[dtype.code] : "float") + std::to_string(dtype.bits) + lanes;
}

std::string Tensor::device_name() const {
  if (device.type == dlpack::cpu) return "cpu";
  const std::string kind = device.type == dlpack::cuda ? "cuda:" : "DLPack device " + std::to_string(device.type) + ":";
  return kind + std::to_string(device.id);
}

std::string Tensor::shape_text() const {
  std::string text = "[";
  for (int i = 0; i < std::min(rank, kMaxRank); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (rank > kMaxRank ? ", ...]" : "]");
}

}  // namespace refusion
