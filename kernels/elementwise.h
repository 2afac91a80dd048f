// Functions of two and three variables with numpy broadcasting, their derivatives, and sums of
// tensors. Row-major f32 unless the type says i32, in parallel.
//
// Operands are aligned at their last dimension. A missing dimension, or a dimension of size 1, is
// repeated. The result has the shape to which the operands broadcast. Requires: the output is an
// operand of the same shape, or overlaps no operand. All functions are bandwidth-bound, except Pow
// and its derivatives.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/dimensions.h"

namespace muster::kernels {

void Add(float* y, const Operand& a, const Operand& b);
void Sub(float* y, const Operand& a, const Operand& b);
void Mul(float* y, const Operand& a, const Operand& b);
void Div(float* y, const Operand& a, const Operand& b);

// y = a to the power of b. Signs, zeros and infinities are those of std::pow. The relative error is
// at most 1e-6.
void Pow(float* y, const Operand& a, const Operand& b);

// The result is NaN if an operand is NaN.
void Minimum(float* y, const Operand& a, const Operand& b);
void Maximum(float* y, const Operand& a, const Operand& b);

// y = a - b floor(a / b), which has b's sign; NaN if b is 0.
void Mod(float* y, const Operand& a, const Operand& b);

// y = 1 if the comparison holds, else 0.
void Equal(int32_t* y, const Operand& a, const Operand& b);
void Less(int32_t* y, const Operand& a, const Operand& b);
void LessOrEqual(int32_t* y, const Operand& a, const Operand& b);
void Equal(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void Less(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void LessOrEqual(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);

// Integer arithmetic modulo 2^32. Div truncates. Div and Mod by 0 give 0.
void Add(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void Sub(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void Mul(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void Div(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void Mod(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void Minimum(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void Maximum(int32_t* y, const IntegerOperand& a, const IntegerOperand& b);
void Neg(int32_t* y, const int32_t* x, int64_t n);
void Abs(int32_t* y, const int32_t* x, int64_t n);

// y = condition ? a : b, for elements of any 4-byte type. `condition` is i32 with the shape
// `condition_dimensions`; any number but 0 is true.
void Where(float* y, const int32_t* condition, Dimensions condition_dimensions, const Operand& a,
           const Operand& b);

// y = x, repeated to the shape `to`. Elements of any 4-byte type.
void Expand(void* y, Dimensions to, const void* x, Dimensions from);

// The derivatives sum over the dimensions along which the operand was broadcast. `to` is the shape
// of the operand and of the output; `dy` has the result's shape. Sums add blocks of floats in
// double, in an order that depends only on the shapes and the instruction set. If nothing was
// broadcast, the output may be an input of its shape.

void SumTo(float* da, Dimensions to, const Operand& dy);     // of Add, Expand
void NegSumTo(float* db, Dimensions to, const Operand& dy);  // of Sub, for b
void MulGrad(float* da, Dimensions to, const Operand& dy, const Operand& other);
void DivGradA(float* da, Dimensions to, const Operand& dy, const Operand& b);
void DivGradB(float* db, const Operand& dy, const Operand& a, const Operand& b);  // shape of b
void PowGradA(float* da, const Operand& dy, const Operand& a, const Operand& b);  // shape of a

// dy aᵇ log a; 0 if a is 0 and b >= 0.
void PowGradB(float* db, const Operand& dy, const Operand& a, const Operand& b);

// dy if a is the smaller (larger) operand, dy / 2 if both are equal, else 0; summed to a's shape.
void MinimumGrad(float* da, const Operand& dy, const Operand& a, const Operand& b);
void MaximumGrad(float* da, const Operand& dy, const Operand& a, const Operand& b);
void WhereGradA(float* da, Dimensions to, const Operand& dy, const int32_t* condition,
                Dimensions condition_dimensions);
void WhereGradB(float* db, Dimensions to, const Operand& dy, const int32_t* condition,
                Dimensions condition_dimensions);

// y = terms[0] + terms[1] + ..., in that order. Requires: at least one term. y may be any of them.
void Accumulate(float* y, std::span<const float* const> terms, int64_t n);

// y = factor x. y may be x.
void Scale(float* y, const float* x, float factor, int64_t n);

// sum[N] = sum over the rows of x[R, N], added like SumTo.
void SumRows(float* sum, const float* x, int64_t rows, int64_t n);

}  // namespace muster::kernels
