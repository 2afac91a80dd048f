// Tells which workers have the devices that a job needs.
#pragma once

#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// Returns whether the worker's devices can share models with resources.tensor_parallel: `degree`.
// The number of CPU devices must be a multiple of it, the number of GPUs equal to it.
bool CanShareModel(const v1::Hello& worker, int degree);

}  // namespace muster
