// What the CUDA library offers: one launcher an op, in a table that the bindings find in the shared library. No CUDA
// header is needed to include this one. Op structs point to device memory; nothing here allocates or waits.
#pragma once
#include <cstddef>

#include "refusion/accept_tokens.h"
#include "refusion/attend.h"
#include "refusion/compact_rows.h"
#include "refusion/rope_append.h"
#include "refusion/score_hidden.h"
#include "refusion/score_tokens.h"
#include "refusion/select_slots.h"

namespace refusion::cuda {

struct Launch {
  void* stream;         // cudaStream_t: the current one of the framework that owns the arrays
  void* workspace;      // device memory, aligned to 256 bytes; null where workspace_bytes is 0
  int multiprocessors;  // of the device; decides how far rows and prefixes are split
};

// Every op has these two functions.
template <class Op>
struct Launcher {
  size_t (*workspace_bytes)(const Op& op, int multiprocessors);
  int (*launch)(const Op& op, const Launch& launch);  // returns a cudaError_t
};

#define REFUSION_LAUNCHERS(Op)                               \
  size_t workspace_bytes(const Op& op, int multiprocessors); \
  int launch(const Op& op, const Launch& launch);
REFUSION_LAUNCHERS(ScoreTokens)
REFUSION_LAUNCHERS(ScoreHidden)
REFUSION_LAUNCHERS(SelectSlots)
REFUSION_LAUNCHERS(AcceptTokens)
REFUSION_LAUNCHERS(RopeAppend)
REFUSION_LAUNCHERS(Attend)
REFUSION_LAUNCHERS(CompactRows)
#undef REFUSION_LAUNCHERS

struct Kernels {
  Launcher<ScoreTokens> score_tokens;
  Launcher<ScoreHidden> score_hidden;
  Launcher<SelectSlots> select_slots;
  Launcher<AcceptTokens> accept_tokens;
  Launcher<RopeAppend> rope_append;
  Launcher<Attend> attend;
  Launcher<CompactRows> compact_rows;
};
const Kernels& kernels();

struct Device {
  int multiprocessors, major, minor;  // major.minor: compute capability
};

// The table of the shared library: the kernels, and what its caller needs of the CUDA runtime, which it does not link.
struct Library {
  const Kernels* kernels;
  int runtime_version;                            // of the CUDA runtime inside: 1000 * major + 10 * minor
  int (*make_current)(int device, int* previous);  // these return a cudaError_t
  int (*describe)(int device, Device* out);        // of the current device; fails where the kernels cannot run on it
  const char* (*error_name)(int error);
  const char* (*error_text)(int error);
};

}  // namespace refusion::cuda

// The one symbol that the shared library exports.
extern "C" const refusion::cuda::Library* refusion_cuda_library();
