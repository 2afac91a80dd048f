// Sums, means and maxima over some dimensions of a tensor and their derivatives. Row-major f32, in
// parallel, bandwidth-bound.
//
// `axes` count from 0, or from the end if negative; none occurs twice. Without axes nothing is
// reduced. The output has the elements that remain, in order. (Keeping the reduced dimensions as 1
// does not change its memory.) Outputs overlap no input unless a comment says otherwise.
#pragma once

#include "kernels/dimensions.h"

namespace muster::kernels {

// Sums add blocks of floats in double, in an order that depends only on the shapes and the
// instruction set.
void ReduceSum(float* y, const Operand& x, Dimensions axes);
void ReduceMean(float* y, const Operand& x, Dimensions axes);

// The maximum is NaN if an element is NaN.
void ReduceMax(float* y, const Operand& x, Dimensions axes);

// dx has shape `to`, that of x.
void ReduceSumGrad(float* dx, Dimensions to, const float* dy, Dimensions axes);
void ReduceMeanGrad(float* dx, Dimensions to, const float* dy, Dimensions axes);

// Equal maxima share dy in equal parts. dx may be x.
void ReduceMaxGrad(float* dx, const float* dy, const Operand& x, const float* y, Dimensions axes);

}  // namespace muster::kernels
