// Sums of tensors, f32.
#pragma once

#include <cstdint>

namespace muster::kernels {

// y[R, N] = a[R, N] + b[N], b repeated over the rows. y may be a, and where rows == 1 also b.
void Add(float* y, const float* a, const float* b, int64_t rows, int64_t n);

// sum[N] = sum over the rows of x[R, N]. sum may not be x. Reads R N floats: bandwidth-bound.
void SumRows(float* sum, const float* x, int64_t rows, int64_t n);

}  // namespace muster::kernels
