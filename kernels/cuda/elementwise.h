// Functions of two and three variables with numpy broadcasting. CUDA twins of
// kernels/elementwise.h. Tensors are in device memory, row-major, 16-byte aligned. Asynchronous on
// `stream`. Returns the launch error, if any. Bandwidth-bound, except kPow.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

// Maximum number of dimensions after a merge of those that every operand walks with one stride.
inline constexpr int kDimensionsMax = 8;

enum class Combination {
  kAdd,      // a + b
  kSub,      // a - b
  kMul,      // a b; also its derivative, from dy and the other operand
  kDiv,      // a / b; also dy / b
  kPow,      // a to the power of b
  kMinimum,  // NaN if either is NaN
  kMaximum,
  kMod,    // a - b floor(a / b)
  kEqual,  // kEqual to kLessOrEqual: 1 or 0, y is i32
  kLess,
  kLessOrEqual,
  kWhere,        // a ? b : c, a i32
  kDivGradB,     // of dy, a, b
  kMinimumGrad,  // of dy, a, b, for operand a; half of dy if a and b are equal
  kMaximumGrad,
  kPowGradA,    // of dy, a, b
  kPowGradB,    // of dy, a, b; 0 where a is 0 and b >= 0
  kWhereGradA,  // of condition i32, dy
  kWhereGradB,
};

struct BroadcastOperand {
  const void* data;
  // Aligned at the last dimension. Missing dimensions and those of size 1 repeat.
  std::vector<int64_t> shape;
};

// y = combination of two or three operands. y has their broadcast shape, and may be an operand of
// exactly that shape.
// - Operands are of floating `type`. y is too, or f32 (`y_type`), so that broadcast results can be
//   summed before they are rounded.
// - From kAdd to kWhere, except kPow, operands may also be i32, and then y is i32: modulo 2^32,
//   kDiv truncates, and a division by 0 gives 0.
//
// Returns cudaErrorInvalidValue if more than kDimensionsMax dimensions remain.
cudaError_t Combine(Combination f, void* y, Type y_type,
                    const std::vector<BroadcastOperand>& operands, Type type, cudaStream_t stream);

}  // namespace muster::kernels::cuda
