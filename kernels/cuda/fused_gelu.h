// When a product's GELU may be the library's.
#pragma once

#include <cstdint>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

// Whether cuBLASLt's GELU behind a product of `type` with rows of `columns` stands for ours. It is
// the one by tanh alone. Its tanh is an approximation: what it is off by is lost in the rounding to
// bf16 or f16, but not within the tolerance in which f32 is compared with our kernels and with the
// CPU. What gelu is of comes out in rows of whole eights.
inline bool LibraryHasGelu(Type type, bool is_exact, int64_t columns) {
  const bool has_16_bits = type == Type::kBf16 || type == Type::kF16;
  return has_16_bits && !is_exact && columns % 8 == 0;
}

}  // namespace muster::kernels::cuda
