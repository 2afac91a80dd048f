// Parts of a tensor, tensors with a border, and their derivatives. Row-major elements of
// `element_bytes` = 2 or 4, in parallel, bandwidth-bound. Nothing overlaps.
#pragma once

#include "kernels/dimensions.h"

namespace muster::kernels {

// For every dimension d of x, y takes elements starts[d], starts[d] + steps[d], ..., `sizes[d]` of
// them, all inside x. As many starts, steps (>= 1) and sizes as x has dimensions.
void Slice(void* y, Dimensions sizes, const void* x, Dimensions x_dimensions, Dimensions starts,
           Dimensions steps, int element_bytes);

// The same elements of dx are dy, the others zero.
void SliceGrad(void* dx, Dimensions x_dimensions, const void* dy, Dimensions sizes,
               Dimensions starts, Dimensions steps, int element_bytes);

// y is x with begins[d] + ends[d] more elements in dimension d, all of them *value, an element.
void Pad(void* y, const void* x, Dimensions x_dimensions, Dimensions begins, Dimensions ends,
         const void* value, int element_bytes);

// dx, of shape `x_dimensions`, is what Pad() left of x.
void PadGrad(void* dx, Dimensions x_dimensions, const void* dy, Dimensions begins, Dimensions ends,
             int element_bytes);

}  // namespace muster::kernels
