// Sums, means and maxima over some dimensions of a tensor and their derivatives. Row-major f32, in
// parallel, bandwidth-bound.
//
// `axes` count from 0, or from the end where negative, none twice; no axes: nothing is reduced. The
// output has the elements that remain, in order (whether the reduced dimensions are kept as 1 is
// the same memory). Outputs overlap no input unless a line says otherwise.
#pragma once

#include "kernels/dimensions.h"

namespace muster::kernels {

// Each sum in one order that depends on the shapes alone: blocks of floats, added in double.
void ReduceSum(float* y, const Operand& x, Dimensions axes);
void ReduceMean(float* y, const Operand& x, Dimensions axes);

// NaN where an element is.
void ReduceMax(float* y, const Operand& x, Dimensions axes);

// dx has shape `to`, that of x.
void ReduceSumGrad(float* dx, Dimensions to, const float* dy, Dimensions axes);
void ReduceMeanGrad(float* dx, Dimensions to, const float* dy, Dimensions axes);

// Equal maxima share dy in equal parts. dx may be x.
void ReduceMaxGrad(float* dx, const float* dy, const Operand& x, const float* y, Dimensions axes);

}  // namespace muster::kernels
