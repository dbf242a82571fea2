// The CPU kernels of one instruction set, and the choice between the sets.
#pragma once
#include "refusion/accept_tokens.h"
#include "refusion/attend.h"
#include "refusion/compact_rows.h"
#include "refusion/linear.h"
#include "refusion/rope_append.h"
#include "refusion/score_hidden.h"
#include "refusion/score_tokens.h"
#include "refusion/select_slots.h"

namespace refusion::cpu {

// Ascending: a machine that has a level has all below it.
enum class Isa : int { baseline, avx2, avx512, amx };

struct Kernels {
  Isa isa;
  void (*score_tokens)(const ScoreTokens&);
  void (*score_hidden)(const ScoreHidden&);
  void (*linear)(const Linear&);
  void (*select_slots)(const SelectSlots&);
  void (*accept_tokens)(const AcceptTokens&);
  void (*rope_append)(const RopeAppend&);
  void (*attend)(const Attend&);
  void (*compact_rows)(const CompactRows&);
};

// Best level that CPU, operating system and build have (CPUID, XCR0, AMX permission).
Isa found_isa();

// Kernels in use: found_isa(), capped by REFUSION_EXT_MAX_ISA; decided at the first call.
// Throws std::invalid_argument when the variable names no level.
const Kernels& kernels();

bool compiled(Isa isa);

const char* name_of(Isa isa);

}  // namespace refusion::cpu
