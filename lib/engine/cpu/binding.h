// Maps a node's memory to a kernel's arguments.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/dimensions.h"
#include "lib/engine/cpu/cpu_kernels.h"

namespace muster {

inline float* Output(const NodeMemory& m, int i = 0) {
  return reinterpret_cast<float*>(m.outputs[i]);
}
inline int32_t* IntegerOutput(const NodeMemory& m) {
  return reinterpret_cast<int32_t*>(m.outputs[0]);
}
// The functions for optional tensors return null for a tensor that the node omits.
inline float* OptionalOutput(const NodeMemory& m, int i) {
  return i < m.outputs.size() ? Output(m, i) : nullptr;
}
inline const float* Input(const NodeMemory& m, int i) {
  return reinterpret_cast<const float*>(m.inputs[i]);
}
inline const float* OptionalInput(const NodeMemory& m, int i) {
  return i < m.inputs.size() ? Input(m, i) : nullptr;
}
inline const int32_t* Ids(const NodeMemory& m, int i) {
  return reinterpret_cast<const int32_t*>(m.inputs[i]);
}
inline float* Workspace(const NodeMemory& m) { return reinterpret_cast<float*>(m.workspace); }

inline kernels::Operand OperandOf(const NodeMemory& m, int i, const std::vector<int64_t>& shape) {
  return {Input(m, i), shape};
}

// Returns a prepare(); its runs call f(memory) or f(memory, numbers), which returns nothing or a
// Status.
template <typename F>
std::function<NodeRun(const NodeMemory&)> Call(F f) {
  return [f = std::move(f)](const NodeMemory& memory) -> NodeRun {
    return [f, memory](const RunNumbers& numbers) mutable -> absl::Status {
      auto call = [&] {
        if constexpr (std::is_invocable_v<F&, const NodeMemory&, const RunNumbers&>) {
          return f(memory, numbers);
        } else {
          return f(memory);
        }
      };
      if constexpr (std::is_void_v<decltype(call())>) {
        call();
        return absl::OkStatus();
      } else {
        return call();
      }
    };
  };
}

// Returns a prepare() that copies `bytes` of the first input to the first output, unless they share
// memory.
std::function<NodeRun(const NodeMemory&)> CopyBytes(int64_t bytes);

// Plans an alias: the first output is the first input, in any layout.
PlannedNode PlanAlias(const CpuNode& node, std::vector<int> shape_only = {});

// Returns the first layout of `inputs` that is not plain, else plain. For pointwise functions and
// their gradients.
Layout CommonLayout(const CpuNode& node, const std::vector<int>& inputs);

}  // namespace muster
