// Describes failures of cuDNN.
#pragma once

#include <cudnn.h>

#include "kernels/cuda/libraries.h"

namespace muster::kernels::cuda {

// Returns the status and, if the library gives one, the reason, because a status alone names no
// cause. Call it right after the failing call, on the same thread. Thread-safe. Each distinct text
// is kept for the life of the process; there are few.
Failure FailureOf(cudnnStatus_t status);

}  // namespace muster::kernels::cuda
