// A graph made ready for a device: types are inferred, every node has a kernel, layouts are settled
// and memory is planned. This code is the same for every device: a KernelRegistry makes the choices
// of one device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/engine/kernel.h"
#include "lib/engine/memory_plan.h"
#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

class CompiledGraph {
 public:
  struct Options {
    int64_t batch = 0;  // samples of a run
    // For each parameter: whether its gradient is written to the caller's memory. All other
    // gradients stay in the arena. Empty: all gradients are written to the caller's memory.
    std::vector<bool> external_gradients;
  };

  // A node with its kernel. Steps are in the order of execution. Constants are not steps: see
  // constants().
  struct Step {
    TypedNode node;
    PlannedNode kernel;
    std::vector<int> inputs;  // numbers of tensors
    std::vector<int> outputs;
    // Parameters to await before this step: those that it is the first to read. The first step with
    // a nonempty `ready` also awaits all parameters that no earlier step has awaited, even those
    // that no step reads.
    std::vector<int> awaits;
    std::vector<int> ready;   // parameters whose gradient may be announced after this step
    bool is_reorder = false;  // inserted between layouts
    // The asynchronous step that must have ended before this one; -1: none. No other step awaits
    // it, and no other collective step lies between them. An asynchronous step that none awaits
    // ends before the next step.
    int awaits_step = -1;
  };

  // The memory that holds the tensors.
  struct Memory {
    std::byte* arena = nullptr;               // arena_bytes() bytes, aligned to kArenaAlignment
    absl::Span<std::byte* const> parameters;  // in the type the graph computes with
    absl::Span<std::byte* const> gradients;   // null for those in the arena
  };

  // Returns INVALID_ARGUMENT, naming the node, if the graph is not valid or the device has no
  // kernel for a node. Requires: `graph` outlives the result and does not move.
  static absl::StatusOr<std::unique_ptr<CompiledGraph>> Create(const v1::Graph& graph,
                                                               const Options& options,
                                                               KernelRegistry& kernels);

  const v1::Graph& graph() const { return graph_; }
  const std::vector<Step>& steps() const { return steps_; }
  int64_t arena_bytes() const { return plan_.arena_bytes; }

  // Constant nodes. Their outputs must be filled (ConstantValue) before the first run and keep
  // their values.
  const std::vector<const v1::Node*>& constants() const { return constants_; }

  // The type, layout and address of a tensor of the graph. Inputs, parameters, gradients and
  // constants can be read and written there as plain tensors. For outputs see
  // KernelRegistry::Fetches().
  const TensorType& type(absl::string_view tensor) const { return types_.at(tensor); }
  Layout layout(absl::string_view tensor) const { return tensors_[numbers_.at(tensor)].layout; }
  std::byte* Address(absl::string_view tensor, const Memory& memory) const;

  // Returns the addresses of a step's tensors, for its kernel's prepare().
  NodeMemory MemoryOf(int step, const Memory& memory) const;

 private:
  // A tensor of the graph in one of the layouts that it is stored in.
  using Version = std::pair<int, Layout>;

  CompiledGraph(const v1::Graph& graph, const Options& options, KernelRegistry& kernels)
      : graph_(graph), options_(options), kernels_(kernels) {}

  absl::Status NumberTensors();
  absl::Status AddNode(const v1::Node& node);
  absl::Status AddConstant(const v1::Node& node);
  void AddStep(Step step);
  int AddTensor(const TensorType& type, Layout layout, int64_t bytes);
  int Number(const std::string& name);
  bool MayLie(int tensor, Layout layout) const;
  absl::StatusOr<int> InLayout(int tensor, Layout layout, const std::string& name);
  absl::Status AddReorder(int from, int to, const std::string& name);
  void PlaceParameterFlow();
  void PlaceAsynchronousSteps();
  std::byte* AddressOf(int tensor, const Memory& memory) const;

  struct Tensor {
    TensorType type;
    Layout layout = Layout::kPlain;
    int graph_input = -1;  // the graph input whose bytes it holds; -1: none
    int parameter = -1;    // the parameter whose values or gradient it holds; -1: none
    bool is_gradient = false;
    bool is_output = false;  // an output of the graph
  };

  const v1::Graph& graph_;
  const Options options_;
  KernelRegistry& kernels_;
  TensorTypes types_;
  // the graph's tensors in the layout they were made in
  absl::flat_hash_map<std::string, int> numbers_;
  absl::flat_hash_map<Version, int> versions_;  // copies of these tensors in other layouts
  std::vector<Tensor> tensors_;
  std::vector<std::unique_ptr<v1::Node>> reorders_;
  std::vector<const v1::Node*> constants_;
  MemoryRequest request_;
  MemoryPlan plan_;
  std::vector<Step> steps_;
};

}  // namespace muster
