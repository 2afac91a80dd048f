// Measures the difference of two results of one computation, row by row. So a fault in one tile of
// a large tensor is not hidden by the rest.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/cuda/type.h"

namespace muster {

// Returns the largest distance of a row, over rows of `length` elements of `type`, bf16 or f16. A
// row's distance is the Euclidean norm |other - own|, relative to |own| or to the usual norm,
// whichever is larger. The usual norm is the root mean square over rows that are not all zero.
// Returns infinity if an element is not finite, or if `own` is all zero and `other` is not.
double RowDistance(absl::Span<const uint16_t> own, absl::Span<const uint16_t> other, int64_t length,
                   kernels::cuda::Type type);

}  // namespace muster
