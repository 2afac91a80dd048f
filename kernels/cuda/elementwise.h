// Functions of two and three variables with numpy broadcasting: CUDA twins of
// kernels/elementwise.h. Tensors are on the device, row-major, 16-byte aligned. Asynchronous on
// `stream`; the launch error, if any, is returned. Bandwidth-bound but for Pow.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

// The most dimensions after those that all operands run through alike have been merged.
inline constexpr int kDimensionsMax = 8;

enum class Combination {
  kAdd,      // a + b
  kSub,      // a - b
  kMul,      // a b; also the derivative of it, of dy and the other operand
  kDiv,      // a / b; also dy / b
  kPow,      // a to the power of b
  kMinimum,  // NaN where either is
  kMaximum,
  kMod,    // a - b floor(a / b)
  kEqual,  // these three: 1 or 0, y is i32
  kLess,
  kLessOrEqual,
  kWhere,        // a ? b : c, a i32
  kDivGradB,     // of dy, a, b
  kMinimumGrad,  // of dy, a, b, for a: half of dy where both are equal
  kMaximumGrad,
  kPowGradA,    // of dy, a, b
  kPowGradB,    // of dy, a, b; 0 where a is 0 and b >= 0
  kWhereGradA,  // of condition i32, dy
  kWhereGradB,
};

struct BroadcastOperand {
  const void* data;
  std::vector<int64_t> shape;  // aligned at the last dimension; missing and 1 repeat
};

// y = combination of two or three operands; y has the shape that they make together and may be an
// operand of that very shape. Operands are of `type`, floating; y is too, or f32 (`y_type`), so
// that what was broadcast can be summed without rounding before. Those down to kWhere but kPow may
// also be of i32, and then y is: modulo 2^32, kDiv truncates, and what is divided by 0 becomes 0.
// cudaErrorInvalidValue when more than kDimensionsMax dimensions are left.
cudaError_t Combine(Combination f, void* y, Type y_type,
                    const std::vector<BroadcastOperand>& operands, Type type, cudaStream_t stream);

}  // namespace muster::kernels::cuda
