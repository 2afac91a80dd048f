// Decides whether a product's GELU may be the library's.
#pragma once

#include <cstdint>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

// Returns whether cuBLASLt's GELU after a product of `type` with rows of `columns` may replace
// ours. The library has only the tanh form, and approximates tanh. That error disappears in the
// rounding to bf16 or f16, but exceeds the tolerance of f32 against our kernels and the CPU's. The
// library stores GELU's input in rows, whose length must be a multiple of eight.
inline bool LibraryHasGelu(Type type, bool is_exact, int64_t columns) {
  const bool has_16_bits = type == Type::kBf16 || type == Type::kF16;
  return has_16_bits && !is_exact && columns % 8 == 0;
}

}  // namespace muster::kernels::cuda
