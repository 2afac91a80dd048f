// Which kernel runs which op on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// A node with the types of its tensors, in its order.
struct TypedNode {
  const v1::Node* node = nullptr;
  std::vector<TensorType> inputs;
  std::vector<TensorType> outputs;
};

// The same with memory, which stays where it is from run to run.
struct PlacedNode : TypedNode {
  std::vector<std::byte*> input_memory;
  std::vector<std::byte*> output_memory;
  std::byte* workspace = nullptr;
};

// A node ready to run; see Executor::Run.
using NodeRun = std::function<absl::Status(float loss_scale)>;

struct CpuKernel {
  NodeRun (*prepare)(const PlacedNode& node) = nullptr;
  std::vector<int> overwritable =
      {};  // positions of inputs whose memory the first output may take over
  std::vector<int> shape_only = {};  // positions of inputs whose values are not read
  // Whether the first output has the same bytes as the first input for these types: both may share
  // memory.
  bool (*is_alias)(const TypedNode& node) = nullptr;
  int64_t (*workspace_bytes)(const TypedNode& node) = nullptr;
};

// Null when there is none.
const CpuKernel* FindCpuKernel(absl::string_view op);

}  // namespace muster
