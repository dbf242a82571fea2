// Which product of row_product.h a number of rows is multiplied by: one rule for linear and score_hidden.
#pragma once
#include "lane_ids.h"
#include "lane_rows.h"

namespace refusion::cpu::REFUSION_ISA {

// Stands for a type of rows where a value of it is not needed.
template <class Rows>
struct Form {
  using Type = Rows;
};

// Calls run(Form<...>) with the fastest form for so many rows of T.
template <class T, class Run>
inline void with_rows_for([[maybe_unused]] int64_t rows, Run run) {
#if defined(__AVX512F__)
  if constexpr (kHasLaneWords<T>) {
    if (rows <= LaneIds<T>::kMost) return run(Form<LaneIds<T>>());
    return run(Form<LaneRows<T>>());
  } else
#endif
    return run(Form<PackedRows<T>>());
}

}  // namespace refusion::cpu::REFUSION_ISA
