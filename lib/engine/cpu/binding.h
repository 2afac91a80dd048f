// From a node's memory to a kernel's arguments.
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
// Null for one that the node leaves out.
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

// A prepare() whose runs call f(memory) or f(memory, numbers), which returns nothing or a Status.
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

// Copies `bytes` of the first input to the first output where they do not share memory.
std::function<NodeRun(const NodeMemory&)> CopyBytes(int64_t bytes);

// An alias: the first output is the first input, in whatever layout that lies.
PlannedNode PlanAlias(const CpuNode& node, std::vector<int> shape_only = {});

// Of an input, for the gradients of pointwise functions: its layout where it is not plain, else the
// first other one of `inputs`.
Layout CommonLayout(const CpuNode& node, const std::vector<int>& inputs);

}  // namespace muster
