// Sums of everything that stands before an element along one dimension. Row-major, in parallel; y
// may be x. Reads n and writes n elements: bandwidth-bound.
#pragma once

#include <cstdint>

namespace muster::kernels {

// Of x[outer, size, inner], along `size`.
struct CumulativeShape {
  int64_t outer;
  int64_t size;
  int64_t inner;
  bool exclusive = false;  // without the element itself: the first is 0
  bool reverse = false;    // from the end: of everything that stands behind
};

// In double, from term to term.
void CumulativeSum(float* y, const float* x, const CumulativeShape& shape);

// Modulo 2^32.
void CumulativeSum(int32_t* y, const int32_t* x, const CumulativeShape& shape);

}  // namespace muster::kernels
