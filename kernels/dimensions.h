// Shapes of row-major tensors as the kernels take them.
#pragma once

#include <cstdint>
#include <span>

namespace muster::kernels {

// The sizes of a tensor, outermost first: at most kDimensionsMax, each >= 1. Empty: a scalar.
using Dimensions = std::span<const int64_t>;
inline constexpr int kDimensionsMax = 12;

inline int64_t Elements(Dimensions dimensions) {
  int64_t elements = 1;
  for (int64_t size : dimensions) elements *= size;
  return elements;
}

// A tensor to be read.
struct Operand {
  const float* data;
  Dimensions dimensions;
};

struct IntegerOperand {
  const int32_t* data;
  Dimensions dimensions;
};

}  // namespace muster::kernels
