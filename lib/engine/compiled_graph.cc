#include "lib/engine/compiled_graph.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/status/status.h"

namespace muster {

absl::StatusOr<std::unique_ptr<CompiledGraph>> CompiledGraph::Create(const v1::Graph& graph,
                                                                     const Options& options,
                                                                     KernelRegistry& kernels) {
  std::unique_ptr<CompiledGraph> compiled(new CompiledGraph(graph, options, kernels));
  ASSIGN_OR_RETURN(compiled->types_, InferTypes(graph, options.batch));
  RETURN_IF_ERROR(compiled->NumberTensors());
  for (const v1::Node& node : graph.nodes()) {
    RETURN_IF_ERROR(Annotate(compiled->AddNode(node),
                             absl::StrCat("node '", node.name(), "' (", node.op(), ")")));
  }
  compiled->PlaceParameterFlow();
  compiled->PlaceAsynchronousSteps();
  compiled->plan_ = PlanMemory(compiled->request_);
  return compiled;
}

int CompiledGraph::AddTensor(const TensorType& type, Layout layout, int64_t bytes) {
  tensors_.push_back({.type = type, .layout = layout});
  request_.tensors.push_back({.bytes = bytes});
  return static_cast<int>(tensors_.size()) - 1;
}

// Returns the number of a tensor that code outside the graph reads or writes; adds it at first use.
int CompiledGraph::Number(const std::string& name) {
  const auto [it, is_new] = numbers_.try_emplace(name, tensors_.size());
  if (is_new) {
    const TensorType& type = types_.at(name);
    AddTensor(type, Layout::kPlain, type.bytes());
  }
  return it->second;
}

absl::Status CompiledGraph::NumberTensors() {
  for (int i = 0; i < graph_.inputs_size(); ++i) {
    const int input = Number(graph_.inputs(i).name());
    // Keeps the input's memory after a run, so that a later run may read the input again without a
    // new fill.
    request_.tensors[input].kept = true;
    tensors_[input].graph_input = i;
  }
  for (int p = 0; p < graph_.parameters_size(); ++p) {
    const int parameter = Number(graph_.parameters(p).name());
    request_.tensors[parameter].external = true;
    tensors_[parameter].parameter = p;
    tensors_[parameter].layout = kernels_.ParameterLayout(tensors_[parameter].type);
  }
  for (const std::string* name : {&graph_.loss(), &graph_.logits(), &graph_.correct()}) {
    if (name->empty()) continue;
    const int output = Number(*name);
    request_.tensors[output].kept = true;
    tensors_[output].is_output = true;
  }
  for (int p = 0; p < graph_.gradients_size(); ++p) {
    const int gradient = Number(graph_.gradients(p));
    if (std::exchange(tensors_[gradient].is_gradient, true) || tensors_[gradient].parameter >= 0) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", graph_.gradients(p),
                                                     "' cannot be the gradient of parameter '",
                                                     graph_.parameters(p).name(), "' as well"));
    }
    tensors_[gradient].parameter = p;
    request_.tensors[gradient].external =
        options_.external_gradients.empty() || options_.external_gradients[p];
  }
  return absl::OkStatus();
}

absl::Status CompiledGraph::AddConstant(const v1::Node& node) {
  const int tensor = Number(node.outputs(0));
  if (tensors_[tensor].is_gradient) {
    return absl::InvalidArgumentError("a constant cannot be the gradient of a parameter");
  }
  request_.tensors[tensor].kept = true;
  constants_.push_back(&node);
  return absl::OkStatus();
}

absl::Status CompiledGraph::AddNode(const v1::Node& node) {
  if (node.op() == "Constant") return AddConstant(node);
  Step step{.node = {.node = &node}};
  for (const std::string& input : node.inputs()) {
    const Tensor& tensor = tensors_[numbers_.at(input)];
    step.node.inputs.push_back(tensor.type);
    step.node.layouts.push_back(tensor.layout);
    step.node.graph_inputs.push_back(tensor.graph_input);
  }
  for (const std::string& output : node.outputs()) {
    step.node.outputs.push_back(types_.at(output));
  }
  ASSIGN_OR_RETURN(step.kernel, kernels_.Plan(step.node));
  PlannedNode& kernel = step.kernel;
  kernel.input_layouts.resize(node.inputs_size());
  kernel.output_layouts.resize(node.outputs_size());

  for (int i = 0; i < node.inputs_size(); ++i) {
    const int tensor = numbers_.at(node.inputs(i));
    const bool is_read = std::ranges::count(kernel.shape_only, i) == 0;
    step.inputs.push_back(tensor);
    if (!is_read) continue;
    ASSIGN_OR_RETURN(step.inputs.back(), InLayout(tensor, kernel.input_layouts[i], node.inputs(i)));
  }
  std::vector<std::pair<int, int>> to_plain;
  for (int i = 0, states = 0; i < node.outputs_size(); ++i) {
    const std::string& name = node.outputs(i);
    const TensorType& type = step.node.outputs[i];
    const Layout layout = kernel.output_layouts[i];
    const int64_t bytes = type.dtype == v1::DTYPE_STATE ? kernel.state_bytes.at(states++)
                                                        : kernels_.Bytes(type, layout);
    const auto known = numbers_.find(name);  // known already if code outside the graph uses it
    int tensor;
    if (known == numbers_.end()) {
      tensor = numbers_[name] = AddTensor(type, layout, bytes);
    } else if (MayLie(known->second, layout)) {
      tensor = known->second;
      tensors_[tensor].layout = layout;
      request_.tensors[tensor].bytes = bytes;
    } else {
      // Code outside the graph cannot use this layout: the kernel writes a version of the tensor,
      // which a reorder then copies.
      tensor = versions_[{known->second, layout}] = AddTensor(type, layout, bytes);
      to_plain.push_back({tensor, known->second});
    }
    step.outputs.push_back(tensor);
  }
  if (kernel.is_alias) {
    tensors_[step.outputs[0]].graph_input = tensors_[step.inputs[0]].graph_input;
  }
  AddStep(std::move(step));
  for (const auto& [from, to] : to_plain) {
    RETURN_IF_ERROR(AddReorder(from, to, node.outputs(0)));
  }
  return absl::OkStatus();
}

void CompiledGraph::AddStep(Step step) {
  MemoryRequest::Node& request = request_.nodes.emplace_back();
  const PlannedNode& kernel = step.kernel;
  for (int i = 0; i < step.inputs.size(); ++i) {
    if (std::ranges::count(kernel.shape_only, i) == 0) request.reads.push_back(step.inputs[i]);
  }
  for (int i : kernel.overwritable) request.overwritable.push_back(step.inputs[i]);
  request.writes = step.outputs;
  if (kernel.is_alias) request.alias_of = step.inputs[0];
  request.workspace_bytes = kernel.workspace_bytes;
  steps_.push_back(std::move(step));
}

// Returns whether code outside the graph that uses the tensor can use it in `layout`.
bool CompiledGraph::MayLie(int tensor, Layout layout) const {
  if (layout == Layout::kPlain) return true;
  const Tensor& used = tensors_[tensor];
  if (used.is_output && !kernels_.Fetches(layout)) return false;
  if (!used.is_gradient) return used.is_output;
  // External memory has room for the plain tensor only.
  return !request_.tensors[tensor].external && kernels_.ReadsAs(layout, Layout::kPlain);
}

// Returns the tensor in a version that can be read in `layout`. Adds a reorder if there is none
// yet.
absl::StatusOr<int> CompiledGraph::InLayout(int tensor, Layout layout, const std::string& name) {
  if (kernels_.ReadsAs(tensors_[tensor].layout, layout)) return tensor;
  const auto known = versions_.find({tensor, layout});
  if (known != versions_.end()) return known->second;
  const TensorType type = tensors_[tensor].type;
  const int version = AddTensor(type, layout, kernels_.Bytes(type, layout));
  versions_[{tensor, layout}] = version;
  RETURN_IF_ERROR(AddReorder(tensor, version, name));
  return version;
}

absl::Status CompiledGraph::AddReorder(int from, int to, const std::string& name) {
  v1::Node& node = *reorders_.emplace_back(std::make_unique<v1::Node>());
  node.set_name(absl::StrCat(name, "/Reorder"));
  node.set_op("Reorder");
  const Tensor& source = tensors_[from];
  ASSIGN_OR_RETURN(PlannedNode kernel,
                   kernels_.PlanReorder(source.type, source.layout, tensors_[to].layout));
  AddStep({.node = {.node = &node,
                    .inputs = {source.type},
                    .outputs = {source.type},
                    .layouts = {source.layout},
                    .graph_inputs = {source.graph_input}},
           .kernel = std::move(kernel),
           .inputs = {from},
           .outputs = {to},
           .is_reorder = true});
  return absl::OkStatus();
}

// A parameter is awaited before the first step that touches it or an alias of it. Its gradient is
// ready after the last step that touches either. No gradient is ready before all parameters were
// awaited: if a wait fails, the worker has pushed nothing of the step. A training step reads no
// running statistic, but awaits it too: the contribution that the step announces for it must belong
// to this step's version.
void CompiledGraph::PlaceParameterFlow() {
  const int tensors = tensors_.size();
  std::vector<int> root(tensors), first(tensors, -1), last(tensors, -1);
  for (int t = 0; t < tensors; ++t) root[t] = t;
  for (int i = 0; i < request_.nodes.size(); ++i) {
    const MemoryRequest::Node& node = request_.nodes[i];
    if (node.alias_of >= 0 && !request_.tensors[node.writes[0]].external) {
      root[node.writes[0]] = root[node.alias_of];
    }
    for (const std::vector<int>* used : {&node.reads, &node.writes}) {
      for (int t : *used) {
        if (first[root[t]] < 0) first[root[t]] = i;
        last[root[t]] = i;
      }
    }
  }
  const int parameters = graph_.parameters_size();
  const bool is_training = !graph_.gradients().empty();
  std::vector<int> first_read(parameters), ready(parameters);
  int last_first_read = 0;
  for (int p = 0; p < parameters; ++p) {
    first_read[p] = first[numbers_.at(graph_.parameters(p).name())];
    last_first_read = std::max(last_first_read, first_read[p]);
  }
  int first_ready = static_cast<int>(steps_.size());
  for (int p = 0; is_training && p < parameters; ++p) {
    const int parameter = numbers_.at(graph_.parameters(p).name());
    const int gradient = numbers_.at(graph_.gradients(p));
    ready[p] = std::max(last[parameter], last[root[gradient]]);
    // A parameter that no step reads is not ready before all others were first read.
    if (first_read[p] < 0) ready[p] = std::max(ready[p], last_first_read);
    first_ready = std::min(first_ready, ready[p]);
    steps_[ready[p]].ready.push_back(p);
    // The executor reads a gradient in the arena once more, after the step that makes it ready. The
    // extra read keeps the arena memory alive until then.
    if (!request_.tensors[gradient].external) request_.nodes[ready[p]].reads.push_back(gradient);
  }
  for (int p = 0; p < parameters; ++p) {
    if (first_read[p] >= 0) {
      steps_[std::min(first_read[p], first_ready)].awaits.push_back(p);
    } else if (is_training) {
      steps_[first_ready].awaits.push_back(p);
    }
  }
}

// The first step that reads the output awaits the end of an asynchronous step, or a collective step
// before it, so that collective operations have one order. Called when it is known which steps read
// gradients.
void CompiledGraph::PlaceAsynchronousSteps() {
  const int end = static_cast<int>(steps_.size());
  for (int i = 0; i < end; ++i) {
    const Step& step = steps_[i];
    if (!step.kernel.is_asynchronous || !step.ready.empty()) continue;
    int reader = i + 1;
    while (reader < end && !steps_[reader].kernel.is_collective &&
           std::ranges::count(request_.nodes[reader].reads, step.outputs[0]) == 0) {
      ++reader;
    }
    if (reader == i + 1 || reader == end) continue;
    request_.nodes[i].awaited_by = reader;
    steps_[reader].awaits_step = i;
  }
}

std::byte* CompiledGraph::AddressOf(int tensor, const Memory& memory) const {
  const int storage = plan_.storage[tensor];
  if (plan_.offsets[storage] >= 0) return memory.arena + plan_.offsets[storage];
  const Tensor& external = tensors_[storage];
  return external.is_gradient ? memory.gradients[external.parameter]
                              : memory.parameters[external.parameter];
}

std::byte* CompiledGraph::Address(absl::string_view tensor, const Memory& memory) const {
  return AddressOf(numbers_.at(tensor), memory);
}

NodeMemory CompiledGraph::MemoryOf(int step, const Memory& memory) const {
  NodeMemory placed;
  const Step& s = steps_[step];
  for (int i = 0; i < s.inputs.size(); ++i) {
    const bool is_read = std::ranges::count(s.kernel.shape_only, i) == 0;
    placed.inputs.push_back(is_read ? AddressOf(s.inputs[i], memory) : nullptr);
  }
  for (int tensor : s.outputs) placed.outputs.push_back(AddressOf(tensor, memory));
  placed.workspace = memory.arena + plan_.workspace_offsets[step];
  return placed;
}

}  // namespace muster
