// Every forward op of lib/graph/ops.md in float64, from its definition: what every device is
// compared with. Shares no code with shape inference or the kernels; written for reading, slow.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "lib/engine/executor.h"
#include "lib/engine/reference/tensor.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::reference {

using Tensors = absl::flat_hash_map<std::string, Tensor>;

// All tensors of a forward graph by name, given its inputs and parameters; a `state` output has no
// elements. The samples of the run are the first dimension of any graph input, 1 without inputs.
// An unknown op or a shape that does not fit is a CHECK: graphs come from tests.
Tensors Evaluate(const v1::Graph& graph, const Tensors& given, const RunArguments& arguments = {});

}  // namespace muster::reference
