// Tensor data in one of the loadable dtypes, converted to what the engine computes with: f16 and bf16 widen exactly, narrowing
// to bf16 rounds to nearest even.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>

#include "kernels/base/element.h"
#include "loader/safetensors.h"

namespace otr {

// Converts `count` values; `stored` need not be aligned. REQUIRES: dtype_is_loadable(dtype).
void convert_tensor(Dtype dtype, const std::byte* stored, size_t count, Bf16* out);
void convert_tensor(Dtype dtype, const std::byte* stored, size_t count, float* out);

}  // namespace otr
