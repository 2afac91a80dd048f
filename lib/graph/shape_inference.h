// Infers the shape and type of every tensor of a graph, for one batch size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

struct TensorType {
  v1::DType dtype = v1::DTYPE_F32;
  std::vector<int64_t> shape;  // row-major; empty: a scalar, or a state

  // Both return 0 for DTYPE_STATE: the device's kernel decides the size of a state.
  int64_t elements() const;
  int64_t bytes() const;
  std::string ToString() const;  // "f32[8, 64, 128]", "state"
  friend bool operator==(const TensorType&, const TensorType&) = default;
};

using TensorTypes = absl::flat_hash_map<std::string, TensorType>;

// Returns the type of every input, parameter and node output by name, with `batch` (>= 1) as the
// batch dimension. Works on forward, differentiated and lowered graphs.
//
// Returns INVALID_ARGUMENT, naming the node, the op and the shapes: "node 'blocks.0.fc' (Linear): x
// is f32[8, 64, 100] but w is f32[512, 128]: inner dimensions 100 and 128 differ". Other errors are
// unknown ops, attributes out of range, undefined or duplicate names, a loss that is not a scalar,
// and sizes beyond 2^40 elements.
absl::StatusOr<TensorTypes> InferTypes(const v1::Graph& graph, int64_t batch);

// Adds the outputs of one more node, for code that builds a graph and needs shapes on the way.
// Returns INVALID_ARGUMENT like InferTypes.
absl::Status InferNode(const v1::Node& node, TensorTypes& types);

}  // namespace muster
