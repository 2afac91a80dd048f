// How far two results of one computation lie apart, row by row: a fault in one tile of a large
// tensor does not drown in the rest.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/cuda/type.h"

namespace muster {

// Of rows of `length` elements, bf16 or f16 as `type` says. Of each row |other - own|, Euclidean,
// in units of |own|, or of such a row's usual norm (the root mean square over rows that are not all
// zero) where that is more; the largest of them. Infinite where an element is no number, or where
// `own` is all zero and `other` is not.
double RowDistance(absl::Span<const uint16_t> own, absl::Span<const uint16_t> other, int64_t length,
                   kernels::cuda::Type type);

}  // namespace muster
