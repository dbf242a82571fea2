// Ragged ranges in device memory.
#pragma once
#include "cuda/portable.cuh"

namespace refusion::cuda {

// The range [offsets[n], offsets[n + 1]) that `item` lies in; the last one for an item behind all of them.
__device__ __forceinline__ int range_of(const int32_t* offsets, int ranges, int item) {
  int low = 0, high = ranges - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (item < offsets[middle + 1])
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

}  // namespace refusion::cuda
