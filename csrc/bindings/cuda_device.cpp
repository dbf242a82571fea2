#include "bindings/cuda_device.h"

#include <dlfcn.h>

#include <array>

namespace py = pybind11;

#ifndef REFUSION_CUDA_BUILT  // set by csrc/cuda/build.cmake; not where the tests compile the bindings by themselves
#define REFUSION_CUDA_BUILT 0
#define REFUSION_CUDA_REASON "not asked for"
#endif

namespace refusion {
namespace {

constexpr int kInsufficientDriver = 35, kNoKernelImage = 209, kUnsupportedPtx = 222;  // values of cudaError_t
constexpr int kDevices = 64;

template <class... Parts>
[[noreturn]] void unavailable(const Check& call, const Parts&... parts) {
  std::ostringstream text;
  (text << call.op << ": " << ... << parts);
  throw CudaUnavailable(text.str());
}

// _cuda.so lies beside the library that holds this function.
std::string library_path() {
  Dl_info own;
  dladdr(reinterpret_cast<const void*>(&library_path), &own);
  const std::string path = own.dli_fname;
  return path.substr(0, path.find_last_of('/') + 1) + "_cuda.so";
}

const cuda::Library& library(const Check& call) {
  static const cuda::Library* loaded = nullptr;
  if (loaded != nullptr) return *loaded;
  if (!cuda_build().built)
    unavailable(call, "the arrays lie on ", call.first->device_name(), ", but refusion_ext was built without CUDA ",
                "kernels (", cuda_build().reason, "): install it with REFUSION_CUDA=on where a CUDA toolkit is, ",
                "or call refusion_ext.reference.", call.op, ", the same in plain torch");
  const std::string path = library_path();
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const entry = handle ? dlsym(handle, "refusion_cuda_library") : nullptr;
  if (entry == nullptr) unavailable(call, "cannot load the CUDA kernels: ", dlerror(), "; install refusion_ext again");
  loaded = reinterpret_cast<decltype(&refusion_cuda_library)>(entry)();
  return *loaded;
}

std::string text_of(const cuda::Library& library, int error) {
  return std::string(library.error_name(error)) + ": " + library.error_text(error);
}

[[noreturn]] void cannot_use(const Check& call, const cuda::Library& library, int error, const cuda::Device& device) {
  const int version = library.runtime_version;
  const std::string name = call.first->device_name(), reason = text_of(library, error);
  if (error == kInsufficientDriver)
    unavailable(call, "no CUDA driver for ", name, " (", reason, "): install a driver of CUDA ", version / 1000, ".",
                version % 1000 / 10, " or newer, or use arrays on the CPU");
  if (error == kNoKernelImage || error == kUnsupportedPtx)
    unavailable(call, "no kernels for ", name, " of compute capability ", device.major, ".", device.minor, " (", reason,
                "): this build has ", cuda_build().code, ", and 8.0 is the least; install refusion_ext again with ",
                "CMAKE_ARGS=-DCMAKE_CUDA_ARCHITECTURES=", device.major, device.minor, ", or update the driver");
  unavailable(call, "cannot use ", name, " (", reason, ")");
}

// Described at the first use; multiprocessors is 0 before.
std::array<cuda::Device, kDevices> devices{};

}  // namespace

CudaBuild cuda_build() {
#if REFUSION_CUDA_BUILT
  return {true, "", REFUSION_CUDA_TOOLKIT, REFUSION_CUDA_CODE};
#else
  return {false, REFUSION_CUDA_REASON, "", ""};
#endif
}

bool has_cuda_kernels(const dlpack::Device& device) { return device.type == dlpack::cuda; }

CudaDevice::CudaDevice(const Check& call) : call_(call) {
  const cuda::Library& cuda = library(call);
  const int id = call.device.id;
  cuda::Device found{};
  if (id < 0 || id >= kDevices) unavailable(call, "cannot use ", call.first->device_name(), " of at most ", kDevices);
  if (const int error = cuda.make_current(id, &previous_)) cannot_use(call, cuda, error, found);
  if (devices[id].multiprocessors != 0) return;
  if (const int error = cuda.describe(id, &found)) {
    cuda.make_current(previous_, &previous_);
    cannot_use(call, cuda, error, found);
  }
  devices[id] = found;
}

CudaDevice::~CudaDevice() {
  int own;
  library(call_).make_current(previous_, &own);
}

const cuda::Kernels& CudaDevice::kernels() const { return *library(call_).kernels; }

int CudaDevice::multiprocessors() const { return devices[call_.device.id].multiprocessors; }

// Frameworks with the exchange API say which stream is current; torch from before it is asked in Python. For all others
// it is the legacy default stream: DLPack has an exporter order its own work before that one where none is named.
void* CudaDevice::stream() const {
  const dlpack::Device& device = call_.device;
  void* stream = nullptr;
  if (call_.first->api != nullptr && call_.first->api->current_stream != nullptr) {
    if (call_.first->api->current_stream(device.type, device.id, &stream) != 0) throw py::error_already_set();
  } else if (call_.first->torch) {
    const py::object current = py::module_::import("torch.cuda").attr("current_stream")(device.id);
    stream = reinterpret_cast<void*>(current.attr("cuda_stream").cast<uintptr_t>());
  }
  return stream;
}

std::string CudaDevice::describe(int error) const { return text_of(library(call_), error); }

}  // namespace refusion
