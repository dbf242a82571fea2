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

struct Library {
  Launcher<ScoreTokens> score_tokens;
  Launcher<ScoreHidden> score_hidden;
  Launcher<SelectSlots> select_slots;
  Launcher<AcceptTokens> accept_tokens;
  Launcher<RopeAppend> rope_append;
  Launcher<Attend> attend;
  Launcher<CompactRows> compact_rows;
};

}  // namespace refusion::cuda
