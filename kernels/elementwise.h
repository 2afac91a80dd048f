// Functions of two and three variables with numpy broadcasting, their derivatives, and sums of
// tensors. Row-major f32, and i32 where a line says so, in parallel.
//
// Operands are aligned at their last dimension; a missing dimension, or one of 1, repeats. The
// result has the shape that they make together. It may be (start where starts) an operand of that
// very shape, and overlaps nothing otherwise. Bandwidth-bound but for Pow.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/dimensions.h"

namespace muster::kernels {

void Add(float* y, const Operand& a, const Operand& b);
void Sub(float* y, const Operand& a, const Operand& b);
void Mul(float* y, const Operand& a, const Operand& b);
void Div(float* y, const Operand& a, const Operand& b);

// As std::pow, signs, zeros and infinities included; within 1e-6.
void Pow(float* y, const Operand& a, const Operand& b);

// NaN where either is.
void Minimum(float* y, const Operand& a, const Operand& b);
void Maximum(float* y, const Operand& a, const Operand& b);

// y = a - b floor(a / b), of b's sign; NaN where b is 0.
void Mod(float* y, const Operand& a, const Operand& b);

// y = 1 where it is so, else 0.
void Equal(int32_t* y, const Operand& a, const Operand& b);
void Less(int32_t* y, const Operand& a, const Operand& b);
void LessOrEqual(int32_t* y, const Operand& a, const Operand& b);
void Equal(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void Less(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void LessOrEqual(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);

// Of integers, modulo 2^32. Div truncates; Div and Mod by 0 give 0.
void Add(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void Sub(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void Mul(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void Div(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void Mod(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void Minimum(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void Maximum(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void Neg(int32_t* y, const int32_t* x, int64_t n);
void Abs(int32_t* y, const int32_t* x, int64_t n);

// y = condition ? a : b, of any 4-byte elements, where `condition` is i32 of shape
// `condition_dimensions`, not 0 for true.
void Where(float* y, const int32_t* condition, Dimensions condition_dimensions, const Operand& a,
           const Operand& b);

// y of shape `to` = x repeated. 4-byte elements of any type.
void Expand(void* y, Dimensions to, const void* x, Dimensions from);

// The derivatives sum what the operand's shape (`to`, that of the output) broadcast, each output in
// one order that depends on the shapes alone, in blocks of floats that are added in double. `dy`
// has the result's shape. Where nothing was broadcast the output may be an input of its shape.

void SumTo(float* da, Dimensions to, const Operand& dy);     // of Add, Expand
void NegSumTo(float* db, Dimensions to, const Operand& dy);  // of Sub, for b
void MulGrad(float* da, Dimensions to, const Operand& dy, const Operand& other);
void DivGradA(float* da, Dimensions to, const Operand& dy, const Operand& b);
void DivGradB(float* db, const Operand& dy, const Operand& a, const Operand& b);  // shape of b
void PowGradA(float* da, const Operand& dy, const Operand& a, const Operand& b);  // shape of a

// dy aᵇ log a; 0 where a is 0 and b >= 0.
void PowGradB(float* db, const Operand& dy, const Operand& a, const Operand& b);

// dy where a is the smaller (larger) one, half of it where both are equal. Shape of a.
void MinimumGrad(float* da, const Operand& dy, const Operand& a, const Operand& b);
void MaximumGrad(float* da, const Operand& dy, const Operand& a, const Operand& b);
void WhereGradA(float* da, Dimensions to, const Operand& dy, const int32_t* condition,
                Dimensions condition_dimensions);
void WhereGradB(float* db, Dimensions to, const Operand& dy, const int32_t* condition,
                Dimensions condition_dimensions);

// y = terms[0] + terms[1] + ..., in that order; at least one. y may be any of them.
void Accumulate(float* y, std::span<const float* const> terms, int64_t n);

// y = factor x. y may be x.
void Scale(float* y, const float* x, float factor, int64_t n);

// sum[N] = sum over the rows of x[R, N], as SumTo.
void SumRows(float* sum, const float* x, int64_t rows, int64_t n);

}  // namespace muster::kernels
