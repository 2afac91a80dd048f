// Tells whether a worker has the devices that a job needs.
#pragma once

#include <string>

#include "google/protobuf/repeated_field.h"

namespace muster {

// Returns whether a worker's devices ("cpu:0", "cuda:0") can share models with
// resources.tensor_parallel: `degree`. The number of CPU devices must be a multiple of it, the
// number of GPUs equal to it.
bool CanShareModel(const google::protobuf::RepeatedPtrField<std::string>& devices, int degree);

}  // namespace muster
