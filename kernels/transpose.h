// Permutation of the dimensions of a row-major tensor. In parallel, bandwidth-bound.
#pragma once

#include "kernels/dimensions.h"

namespace muster::kernels {

// Dimension k of y is dimension permutation[k] of x, whose shape is `dimensions`. Requires:
// `element_bytes` is 2 or 4, and y does not overlap x.
void Transpose(void* y, const void* x, Dimensions dimensions, Dimensions permutation,
               int element_bytes);

}  // namespace muster::kernels
