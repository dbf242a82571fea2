// Ragged ranges in device memory, whose offsets nobody has checked.
#pragma once
#include "cuda/portable.cuh"

namespace refusion::cuda {

// What lies between two offsets; empty where they are no range of `count` items.
struct Range {
  int begin, end;

  __device__ __forceinline__ Range(const int32_t* offsets, int64_t index, int64_t count)
      : begin(min(max(offsets[index], 0), int(count))), end(max(begin, min(offsets[index + 1], int(count)))) {}
  __device__ __forceinline__ int length() const { return end - begin; }
};

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
