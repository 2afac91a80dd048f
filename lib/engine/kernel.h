// What a device says about the nodes of a graph: which kernel runs each, in which layouts, with how
// much memory. The same for all devices: CompiledGraph asks, a registry per device answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// In which order a tensor's elements lie in memory. Every device numbers its own; only kPlain,
// row-major without gaps, means the same everywhere. A layout is about places of elements: the
// element type is the tensor's.
enum class Layout : int32_t { kPlain = 0 };

// A node with what is known of its tensors before they have memory.
struct TypedNode {
  const v1::Node* node = nullptr;
  std::vector<TensorType> inputs;
  std::vector<TensorType> outputs;
  std::vector<Layout> layouts;    // for each input: how its values lie where they were made
  std::vector<int> graph_inputs;  // for each input: the graph input whose bytes it holds, perhaps
                                  // in another shape; -1: none
};

// Where a node's tensors lie; they stay there from run to run.
struct NodeMemory {
  std::vector<std::byte*> inputs;  // null for one that is only a shape
  std::vector<std::byte*> outputs;
  std::byte* workspace = nullptr;
};

// RunArguments as kernels use them: see "Numbers that come with a run" in lib/graph/ops.md.
// Trivially copyable, so that a device may keep a copy where its kernels read it.
struct RunNumbers {
  float loss_scale = 1;
  int64_t samples = 1;         // n: of this run
  int64_t batch = 1;           // N: of the global batch
  int64_t first_position = 0;  // of this run's first sample in the global batch
  uint64_t seed = 0;
  int64_t step = 0;
  // By graph input: the global batch's targets that count; null: count those of this run.
  const int64_t* counted_targets = nullptr;

  // How many elements (rows, ...) the global batch has where this run has `own`.
  double of_batch(int64_t own) const { return double(own) / double(samples) * double(batch); }
};

// A node ready to run: computes on the CPU, enqueues on a device with a stream. Called from one
// thread at a time. Empty: nothing to do.
using NodeRun = std::function<absl::Status(const RunNumbers& numbers)>;

// How a device will run one node: chosen before there is memory, completed once there is.
struct PlannedNode {
  // How the inputs must lie, in their order; an input that lies otherwise is reordered before.
  // Empty: all plain. Likewise how the outputs will lie.
  std::vector<Layout> input_layouts = {};
  std::vector<Layout> output_layouts = {};

  std::vector<int> overwritable = {};  // inputs whose memory the first output may take over, where
                                       // both are of the same size
  std::vector<int> shape_only = {};    // inputs whose values are not read
  // The first output has the bytes of the first input: they share memory where they can. prepare()
  // copies where they could not.
  bool is_alias = false;
  int64_t workspace_bytes = 0;            // scratch during the node
  std::vector<int64_t> state_bytes = {};  // of each DTYPE_STATE output, in their order

  std::function<NodeRun(const NodeMemory& memory)> prepare;
};

// The kernels of a device. Used while a graph is compiled, from one thread.
class KernelRegistry {
 public:
  virtual ~KernelRegistry() = default;

  // INVALID_ARGUMENT, without the node's name, when the device has no kernel for the op with these
  // types. `node` lives until the last prepare() has returned.
  virtual absl::StatusOr<PlannedNode> Plan(const TypedNode& node) = 0;

  // A copy of a tensor from one layout into another. INTERNAL where the device has none: a plan
  // asked for a layout that the tensor cannot be brought into.
  virtual absl::StatusOr<PlannedNode> PlanReorder(const TensorType& type, Layout from,
                                                  Layout to) = 0;

  // Memory of a tensor in a layout; at least that of the plain one.
  virtual int64_t Bytes(const TensorType& type, Layout layout) = 0;

  // How a parameter of the type the graph computes with lies in the device's memory. One that
  // ReadsAs() plain: its values are written by those who know nothing of layouts.
  virtual Layout ParameterLayout(const TensorType& /*type*/) { return Layout::kPlain; }

  // Whether a tensor that lies in `from` can be read as it lies where `to` is asked for.
  virtual bool ReadsAs(Layout from, Layout to) { return from == to; }

  // Whether the executor fetches an output of the graph (loss, logits, correct) from this layout.
  virtual bool Fetches(Layout layout) { return layout == Layout::kPlain; }
};

// The bytes of a Constant node's output, on the host.
std::vector<std::byte> ConstantValue(const v1::Node& node, const TensorType& type);

}  // namespace muster
