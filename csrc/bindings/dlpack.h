// The parts of the DLPack ABI (https://dmlc.github.io/dlpack) that this package speaks: tensors, both kinds of managed
// tensor, and the C exchange API of version 1.3. Declared here so that the build needs no framework's headers.
#pragma once
#include <cstddef>
#include <cstdint>

namespace refusion::dlpack {

enum DeviceType : int32_t { cpu = 1, cuda = 2, cuda_host = 3 };
enum TypeCode : uint8_t { code_int = 0, code_uint, code_float, code_handle, code_bfloat, code_complex, code_bool };

struct Device {
  int32_t type, id;
};

struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // elements; null (before version 1.2): row-major
  uint64_t byte_offset;
};

struct Managed {
  DLTensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

struct Version {
  uint32_t major, minor;
};

constexpr uint32_t kMajor = 1, kMinor = 3;
constexpr uint64_t kReadOnly = 1;

struct ManagedVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  DLTensor tensor;
};

// The functions set a Python error and return non-zero where they fail.
struct ExchangeApi {
  Version version;
  const ExchangeApi* older;
  int (*allocate)(DLTensor* prototype, ManagedVersioned** out, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  int (*managed_from_object)(void* object, ManagedVersioned** out);
  int (*managed_to_object)(ManagedVersioned* tensor, void** out);
  int (*tensor_from_object)(void* object, DLTensor* out);  // may be null; `out` borrows from the object
  int (*current_stream)(int32_t device_type, int32_t device_id, void** stream);
};

static_assert(sizeof(DLTensor) == 48 && offsetof(DLTensor, shape) == 24, "layout of DLPack");
static_assert(offsetof(Managed, context) == 48 && offsetof(ManagedVersioned, tensor) == 32, "layout of DLPack");
static_assert(offsetof(ExchangeApi, tensor_from_object) == 40, "layout of DLPack");

}  // namespace refusion::dlpack
