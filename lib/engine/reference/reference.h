// Evaluates every forward op of lib/graph/ops.md in float64, from its definition. All devices are
// compared with it. It shares no code with shape inference or the kernels,
// except the random numbers of kernels/philox.h. It is slow, because it is written to be easy to
// read.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "lib/engine/executor.h"
#include "lib/engine/reference/tensor.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::reference {

using Tensors = absl::flat_hash_map<std::string, Tensor>;

// Returns all tensors of a forward graph by name, given its inputs and parameters. A `state` output
// has no elements. The first dimension of any graph input is the number of samples; it is 1 without
// inputs. An unknown op or a shape that does not fit fails a CHECK, because graphs come from tests.
Tensors Evaluate(const v1::Graph& graph, const Tensors& given, const RunArguments& arguments = {});

// Evaluates the parts of a split graph, one for each rank, and returns the tensors of each. `given`
// has the inputs and parameters of each rank. The ranks' graphs must have the same nodes.
std::vector<Tensors> EvaluateRanks(absl::Span<const v1::Graph> graphs, std::vector<Tensors> given,
                                   const RunArguments& arguments = {});

}  // namespace muster::reference
