// Products by vectors of words: a word is a float32 or a pair of bfloat16, and a vector holds one word of sixteen rows.
// Every sum runs over the words of the width one after another, in blocks. So lane_rows.h and lane_ids.h, which differ
// in whose rows lie along the lanes, agree to the bit, and a result does not depend on how many rows stand beside it.
#pragma once
#include "row_product.h"
#include "transpose.h"

#if defined(__AVX512F__)

namespace refusion::cpu::REFUSION_ISA {

// Words of rows and matrix are multiplied as they are, so not float16, whose matrix rows are converted.
template <class T>
constexpr bool kHasLaneWords = sizeof(typename Product<T>::Packed) == sizeof(T);

template <class T>
constexpr int64_t kWord = 4 / int64_t(sizeof(T));  // elements
constexpr int64_t kWordBlock = 256;  // words summed up before they join the total: keeps rounding small

// A word, or the first elements of one, in every lane.
template <class T>
inline auto broadcast_word(const T* from, int64_t elements = kWord<T>) {
  int32_t word = 0;
  std::memcpy(&word, from, size_t(elements) * sizeof(T));
  if constexpr (kWord<T> == 1) return _mm512_castsi512_ps(_mm512_set1_epi32(word));
  else return _mm512_set1_epi32(word);
}

}  // namespace refusion::cpu::REFUSION_ISA

#endif
