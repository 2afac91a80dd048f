// How a device runs the nodes of a graph: the kernel of each node, its layouts and its memory. This
// interface is the same for all devices: CompiledGraph asks, one registry per device answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/collective/communicator.h"
#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// The order of a tensor's elements in memory. Every device numbers its own layouts. Only kPlain,
// row-major without gaps, means the same on all devices. A layout does not include the element
// type: the tensor has it.
enum class Layout : int32_t { kPlain = 0 };

// A node, and what is known about its tensors before they have memory.
struct TypedNode {
  const v1::Node* node = nullptr;
  std::vector<TensorType> inputs;
  std::vector<TensorType> outputs;
  std::vector<Layout> layouts;  // for each input: the layout its values were made in
  // The graph input that each input's bytes come from, possibly in another shape; -1: none.
  std::vector<int> graph_inputs;
};

// The addresses of a node's tensors. They do not change from run to run.
struct NodeMemory {
  std::vector<std::byte*> inputs;  // null for an input that is only a shape
  std::vector<std::byte*> outputs;
  std::byte* workspace = nullptr;
};

// RunArguments as kernels use them: see "Numbers that come with a run" in lib/graph/ops.md.
// Trivially copyable, so that a device may keep a copy that its kernels can read.
struct RunNumbers {
  float loss_scale = 1;
  int64_t samples = 1;         // n: samples of this run
  int64_t batch = 1;           // N: samples of the global batch
  int64_t first_position = 0;  // position of this run's first sample in the global batch
  uint64_t seed = 0;
  int64_t step = 0;
  // The number of the global batch's targets that count, for each graph input. Null: count the
  // targets of this run.
  const int64_t* counted_targets = nullptr;
  // This device's rank among those that merge the sums of synchronised norms. Null: such a node
  // does not meet the others, and its results have no meaning. A GPU warms up so.
  Communicator* communicator = nullptr;
  // This device's rank among those that share a graph. Null: the graph is not split, or a GPU warms
  // up, see `communicator`.
  Communicator* tensor_parallel = nullptr;
  // The stream of asynchronous nodes, see PlannedNode. Null on the CPU.
  CollectiveStream asynchronous = nullptr;

  // The number of elements (rows, ...) in the global batch if this run has `own` of them.
  double of_batch(int64_t own) const { return double(own) / double(samples) * double(batch); }
};

// A node that is ready to run: it computes on the CPU, or enqueues on a device with a stream.
// Called from one thread at a time. Empty: the node has nothing to do.
using NodeRun = std::function<absl::Status(const RunNumbers& numbers)>;

// How a device will run one node. The choice is made before memory exists; prepare() completes it.
struct PlannedNode {
  // The layouts of the inputs, in their order. An input in another layout is reordered first.
  // Empty: all plain. `output_layouts` has the layouts of the outputs in the same way.
  std::vector<Layout> input_layouts = {};
  std::vector<Layout> output_layouts = {};

  // The first output may reuse the memory of one of these inputs if both have the same size.
  std::vector<int> overwritable = {};
  std::vector<int> shape_only = {};  // inputs whose values are not read
  // The first output has the bytes of the first input: they share memory if possible. prepare()
  // copies if they do not share it.
  bool is_alias = false;
  // The node meets other devices while it runs. A GPU launches it between CUDA graphs.
  bool is_collective = false;
  // The node may run beside later ones until a node reads its output: see
  // CompiledGraph::Step::awaits_step.
  bool is_asynchronous = false;
  int64_t workspace_bytes = 0;            // scratch memory while the node runs
  std::vector<int64_t> state_bytes = {};  // for each DTYPE_STATE output, in their order

  std::function<NodeRun(const NodeMemory& memory)> prepare;
};

// The kernels of a device. Used only while a graph is compiled, from one thread.
class KernelRegistry {
 public:
  virtual ~KernelRegistry() = default;

  // Returns INVALID_ARGUMENT, without the node's name, if the device has no kernel for the op with
  // these types. Requires: `node` lives until the last prepare() has returned.
  virtual absl::StatusOr<PlannedNode> Plan(const TypedNode& node) = 0;

  // Plans a copy of a tensor from one layout into another. Returns INTERNAL if the device cannot
  // copy that way: a plan asked for a layout that is not possible for the tensor.
  virtual absl::StatusOr<PlannedNode> PlanReorder(const TensorType& type, Layout from,
                                                  Layout to) = 0;

  // Returns the bytes of a tensor in a layout: at least those of the plain layout.
  virtual int64_t Bytes(const TensorType& type, Layout layout) = 0;

  // Returns the layout of a parameter in the device's memory, in the type the graph computes with.
  // Code that writes a parameter's values knows only plain tensors. So the layout must satisfy
  // ReadsAs(layout, kPlain).
  virtual Layout ParameterLayout(const TensorType& /*type*/) { return Layout::kPlain; }

  // Returns whether a tensor in layout `from` can be read as if its layout were `to`.
  virtual bool ReadsAs(Layout from, Layout to) { return from == to; }

  // Returns whether the executor can fetch an output of the graph (loss, logits, correct) from this
  // layout.
  virtual bool Fetches(Layout layout) { return layout == Layout::kPlain; }
};

// Returns the bytes of a Constant node's output, in host memory.
std::vector<std::byte> ConstantValue(const v1::Node& node, const TensorType& type);

}  // namespace muster
