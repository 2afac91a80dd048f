// The functions of activation.h that take little time in a step. They are in a separate file
// because machine_code_test forbids local memory in the other one, and sinf and cosf use it to
// reduce large arguments.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/activation.h"

namespace muster::kernels::cuda {

// Requires: n > 0, and a function from kAbs on. Returns cudaErrorInvalidValue if the function or
// its derivative is not here.
cudaError_t ApplyElementary(const Curve& f, void* y, const void* x, int64_t n, Type type,
                            cudaStream_t stream);
cudaError_t ApplyElementaryGrad(const Curve& f, void* dx, const void* dy, const void* x, int64_t n,
                                Type type, cudaStream_t stream);

// kNeg and kAbs of i32. Requires: n > 0. Returns cudaErrorInvalidValue for other functions.
cudaError_t ApplyToIntegers(Function f, void* y, const void* x, int64_t n, cudaStream_t stream);

}  // namespace muster::kernels::cuda
