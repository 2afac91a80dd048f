// Sums of the elements up to each element along one dimension. Row-major, in parallel. y may be x.
// Reads n and writes n elements: bandwidth-bound.
#pragma once

#include <cstdint>

namespace muster::kernels {

// x is [outer, size, inner]; the sums run along `size`.
struct CumulativeShape {
  int64_t outer;
  int64_t size;
  int64_t inner;
  bool exclusive = false;  // omits the element itself: the first sum is 0
  bool reverse = false;    // sums from the end: from each element to the last
};

// Adds the terms one after the other in double.
void CumulativeSum(float* y, const float* x, const CumulativeShape& shape);

// Sums modulo 2^32.
void CumulativeSum(int32_t* y, const int32_t* x, const CumulativeShape& shape);

}  // namespace muster::kernels
