// The functions of activation.h that no step spends its time in. Apart from the others, whose
// machine code is tested: sinf and cosf reduce large arguments in local memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/activation.h"

namespace muster::kernels::cuda {

// From kAbs on; n > 0. cudaErrorInvalidValue for a function, or a derivative, that is not here.
cudaError_t ApplyElementary(const Curve& f, void* y, const void* x, int64_t n, Type type,
                            cudaStream_t stream);
cudaError_t ApplyElementaryGrad(const Curve& f, void* dx, const void* dy, const void* x, int64_t n,
                                Type type, cudaStream_t stream);

// kNeg and kAbs of i32; n > 0. cudaErrorInvalidValue for others.
cudaError_t ApplyToIntegers(Function f, void* y, const void* x, int64_t n, cudaStream_t stream);

}  // namespace muster::kernels::cuda
