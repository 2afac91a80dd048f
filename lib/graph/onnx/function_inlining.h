// Inlines the functions that an ONNX file defines (PyTorch's exporter makes them), so that all
// other code sees only operators.
#pragma once

#include "absl/status/status.h"
#include "proto/third_party/onnx/onnx.pb.h"

namespace muster {

// Replaces each call by the function's nodes, in the model's graph and in the graphs inside its
// nodes. Then clears model.functions.
// Returns INVALID_ARGUMENT if calls are nested more than 32 deep, for example because a function
// calls itself. Also returns it if the graph grows beyond a million nodes, or beyond the size of
// the model plus 256 MiB.
absl::Status InlineFunctions(onnx::ModelProto& model);

}  // namespace muster
