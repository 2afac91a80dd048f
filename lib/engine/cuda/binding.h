// Maps a node's memory to a kernel's arguments.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/engine/cuda/cuda_kernels.h"

namespace muster {

inline float* Floats(std::byte* memory) { return reinterpret_cast<float*>(memory); }
inline const int32_t* Ids(const std::byte* memory) {
  return reinterpret_cast<const int32_t*>(memory);
}
inline int32_t* IntegerOutput(const NodeMemory& m) {
  return reinterpret_cast<int32_t*>(m.outputs[0]);
}
// These return null for an input or output that the node omits.
inline std::byte* OptionalInput(const NodeMemory& m, int i) {
  return i < static_cast<int>(m.inputs.size()) ? m.inputs[i] : nullptr;
}
inline std::byte* OptionalOutput(const NodeMemory& m, int i) {
  return i < static_cast<int>(m.outputs.size()) ? m.outputs[i] : nullptr;
}

// Returns a prepare(); its runs call f(memory), which returns a cudaError_t or a cuda::Failure.
template <typename F>
std::function<NodeRun(const NodeMemory&)> Enqueue(F f) {
  return [f = std::move(f)](const NodeMemory& memory) -> NodeRun {
    return [f, memory](const RunNumbers&) { return StatusOf(f(memory)); };
  };
}

// The alignment of library workspaces. Request that many more bytes, then align the pointer.
inline constexpr int64_t kWorkspaceAlignment = 256;
inline std::byte* Align(std::byte* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return memory + (-address & (kWorkspaceAlignment - 1));
}
inline int64_t Aligned(int64_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

// Plans an alias: the first output is the first input.
PlannedNode PlanAlias(const CudaNode& node, std::vector<int> shape_only = {});

// Returns the layout in which a pointwise node computes. It is kChannelsLast if one of `inputs` has
// that layout and all of them have the first output's shape.
Layout PointwiseLayout(const CudaNode& node, const std::vector<int>& inputs);

// Returns `plan` with the first output and `inputs` in PointwiseLayout() and the other inputs
// plain. `inputs` may be overwritten.
PlannedNode Pointwise(const CudaNode& node, const std::vector<int>& inputs, PlannedNode plan);

// Padded() returns `plan` in the layouts of ChoosePadding(). PaddedSize() returns a dimension as
// the node's kernel counts it, padded if the node is.
inline PlannedNode Padded(const CudaNode& node, PlannedNode plan) {
  ChoosePadding(node, plan);
  return plan;
}
inline int64_t PaddedSize(const CudaNode& node, int64_t n) {
  PlannedNode layouts;
  return ChoosePadding(node, layouts) ? PaddedSize(n) : n;
}

// Return the shape of a tensor as stored in memory, and the position of an axis in that shape.
std::vector<int64_t> ShapeInMemory(const std::vector<int64_t>& shape, Layout layout);
int AxisInMemory(int axis, Layout layout);

}  // namespace muster
