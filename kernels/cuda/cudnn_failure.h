// What cuDNN says went wrong.
#pragma once

#include <cudnn.h>

#include "kernels/cuda/libraries.h"

namespace muster::kernels::cuda {

// The status and, where the library gives one, its reason: a status alone names no cause. Right
// behind the call that failed, on its thread. Thread-safe; each text is kept once, and there are
// few.
Failure FailureOf(cudnnStatus_t status);

}  // namespace muster::kernels::cuda
