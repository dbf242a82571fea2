// Element types shared by every op.
#pragma once
#include <cstdint>

namespace refusion {

enum class DType : int32_t { float32, bfloat16, float16 };

constexpr int64_t size_of(DType dtype) { return dtype == DType::float32 ? 4 : 2; }

}  // namespace refusion
