// Every op's launcher.
#include "cuda/launchers.h"

namespace refusion::cuda {
namespace {

template <class Op>
constexpr Launcher<Op> launcher() {
  return {&workspace_bytes, &launch};  // overloads: the types choose
}

}  // namespace

const Kernels& kernels() {
  static constexpr Kernels table{launcher<ScoreTokens>(), launcher<ScoreHidden>(), launcher<SelectSlots>(),
                                 launcher<AcceptTokens>(), launcher<RopeAppend>(), launcher<Attend>(),
                                 launcher<CompactRows>()};
  return table;
}

}  // namespace refusion::cuda
