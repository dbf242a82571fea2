// Working memory of the kernels.
#pragma once
#include <cstddef>

namespace refusion::cpu {

// At least `bytes`, aligned to 64, valid until the thread's next call. Kept between calls and freed with the thread, so
// a thread holds the most that one of its calls needed. To be taken before a parallel region, where std::bad_alloc can
// still be caught.
void* scratch(size_t bytes);

}  // namespace refusion::cpu
