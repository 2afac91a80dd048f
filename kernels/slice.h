// Parts of a tensor, tensors with a border, and their derivatives. Row-major, in parallel,
// bandwidth-bound. Requires: `element_bytes` is 2 or 4, and buffers do not overlap.
#pragma once

#include "kernels/dimensions.h"

namespace muster::kernels {

// In dimension d, y has the sizes[d] elements starts[d], starts[d] + steps[d], ... of x. Requires:
// they are inside x, steps are >= 1, and x has as many dimensions as there are starts, steps and
// sizes.
void Slice(void* y, Dimensions sizes, const void* x, Dimensions x_dimensions, Dimensions starts,
           Dimensions steps, int element_bytes);

// The elements of dx that Slice() takes are dy; the others are zero.
void SliceGrad(void* dx, Dimensions x_dimensions, const void* dy, Dimensions sizes,
               Dimensions starts, Dimensions steps, int element_bytes);

// y is x with begins[d] more elements before it and ends[d] after it in dimension d. They are all
// *value, which is one element.
void Pad(void* y, const void* x, Dimensions x_dimensions, Dimensions begins, Dimensions ends,
         const void* value, int element_bytes);

// dx has the shape `x_dimensions`. It is the part of dy at the place of x.
void PadGrad(void* dx, Dimensions x_dimensions, const void* dy, Dimensions begins, Dimensions ends,
             int element_bytes);

}  // namespace muster::kernels
