// Functions that an ONNX file defines for itself (PyTorch's exporter makes them) are written out
// where they are called, so that everything else sees operators alone.
#pragma once

#include "absl/status/status.h"
#include "proto/third_party/onnx/onnx.pb.h"

namespace muster {

// Replaces each call in the model's graph, and in the graphs inside its nodes, by the function's
// nodes, and clears model.functions. INVALID_ARGUMENT for functions that call themselves and for a
// graph that grows beyond a million nodes or 4 GiB.
absl::Status InlineFunctions(onnx::ModelProto& model);

}  // namespace muster
