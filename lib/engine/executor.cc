#include "lib/engine/executor.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "lib/engine/cpu_device.h"
#include "lib/engine/cpu_kernels.h"
#include "lib/engine/memory_plan.h"
#include "lib/graph/shape_inference.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// A graph whose tensors and kernels are known, with its memory planned.
class CompiledGraph {
 public:
  struct Step {
    TypedNode node;
    const CpuKernel* kernel;
    std::vector<int> awaits;  // parameters that no node before this one has read
    std::vector<int> ready;   // parameters whose gradient may be announced after this node
  };

  static absl::StatusOr<CompiledGraph> Create(const v1::Graph& graph, int64_t batch) {
    CompiledGraph compiled(graph);
    ASSIGN_OR_RETURN(compiled.types_, InferTypes(graph, batch));
    RETURN_IF_ERROR(compiled.NumberTensors());
    RETURN_IF_ERROR(compiled.AddNodes());
    compiled.plan_ = PlanMemory(compiled.request_);
    compiled.PlaceParameterFlow();
    return compiled;
  }

  const MemoryPlan& plan() const { return plan_; }
  const std::vector<Step>& steps() const { return steps_; }
  int tensor(absl::string_view name) const { return tensors_.at(name); }
  const TensorType& type(absl::string_view name) const { return types_.at(name); }

 private:
  explicit CompiledGraph(const v1::Graph& graph) : graph_(graph) {}

  int Number(const std::string& name) {
    auto [it, is_new] = tensors_.try_emplace(name, request_.tensors.size());
    if (is_new) request_.tensors.push_back({.bytes = types_.at(name).bytes()});
    return it->second;
  }

  absl::Status NumberTensors() {
    for (const v1::GraphInput& input : graph_.inputs()) {
      request_.tensors[Number(input.name())].kept = true;
    }
    for (const v1::Parameter& parameter : graph_.parameters()) {
      request_.tensors[Number(parameter.name())].external = true;
    }
    for (const std::string* output : {&graph_.loss(), &graph_.logits(), &graph_.correct()}) {
      if (!output->empty()) request_.tensors[Number(*output)].kept = true;
    }
    for (const std::string& gradient : graph_.gradients()) {
      MemoryRequest::Tensor& tensor = request_.tensors[Number(gradient)];
      if (std::exchange(tensor.external, true)) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor '", gradient, "' cannot be the gradient of two parameters"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddNodes() {
    for (const v1::Node& node : graph_.nodes()) {
      const CpuKernel* kernel = FindCpuKernel(node.op());
      if (kernel == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat("node '", node.name(), "': op '", node.op(),
                                                       "' has no kernel on the device"));
      }
      Step step{.node = {.node = &node}, .kernel = kernel};
      MemoryRequest::Node& request = request_.nodes.emplace_back();
      for (int i = 0; i < node.inputs_size(); ++i) {
        step.node.inputs.push_back(types_.at(node.inputs(i)));
        const int tensor = Number(node.inputs(i));
        if (!std::ranges::count(kernel->shape_only, i)) request.reads.push_back(tensor);
        if (std::ranges::count(kernel->overwritable, i)) request.overwritable.push_back(tensor);
      }
      for (const std::string& output : node.outputs()) {
        step.node.outputs.push_back(types_.at(output));
        request.writes.push_back(Number(output));
      }
      if (kernel->is_alias != nullptr && kernel->is_alias(step.node)) {
        request.alias_of = tensor(node.inputs(0));
      }
      if (kernel->workspace_bytes != nullptr) {
        request.workspace_bytes = kernel->workspace_bytes(step.node);
      }
      steps_.push_back(std::move(step));
    }
    return absl::OkStatus();
  }

  // The first and the last node that touches the memory of a tensor; -1 when none does.
  std::pair<int, int> Uses(const std::string& name) const {
    const int storage = plan_.storage[tensor(name)];
    auto here = [&](int t) { return plan_.storage[t] == storage; };
    int first = -1, last = -1;
    for (int i = 0; i < request_.nodes.size(); ++i) {
      const MemoryRequest::Node& node = request_.nodes[i];
      if (std::ranges::none_of(node.reads, here) && std::ranges::none_of(node.writes, here)) {
        continue;
      }
      if (first < 0) first = i;
      last = i;
    }
    return {first, last};
  }

  void PlaceParameterFlow() {
    for (int p = 0; p < graph_.parameters_size(); ++p) {
      const auto [first, last] = Uses(graph_.parameters(p).name());
      if (first >= 0) steps_[first].awaits.push_back(p);
      if (graph_.gradients().empty()) continue;
      steps_[std::max(last, Uses(graph_.gradients(p)).second)].ready.push_back(p);
    }
  }

  const v1::Graph& graph_;
  TensorTypes types_;
  absl::flat_hash_map<std::string, int> tensors_;
  MemoryRequest request_;
  MemoryPlan plan_;
  std::vector<Step> steps_;
};

class CpuExecutor : public Executor {
 public:
  CpuExecutor(const v1::Graph& graph, const CompiledGraph& compiled, const Options& options,
              Device::Memory arena)
      : device_(static_cast<CpuDevice&>(*options.device)),
        arena_(std::move(arena)),
        arena_bytes_(compiled.plan().arena_bytes) {
    absl::flat_hash_map<int, std::byte*> external;  // by storage
    for (int p = 0; p < graph.parameters_size(); ++p) {
      external[compiled.tensor(graph.parameters(p).name())] =
          reinterpret_cast<std::byte*>(options.parameters[p]);
      if (graph.gradients().empty()) continue;
      external[compiled.tensor(graph.gradients(p))] =
          reinterpret_cast<std::byte*>(options.gradients[p]);
    }
    auto address = [&](const std::string& name) {
      const int storage = compiled.plan().storage[compiled.tensor(name)];
      const int64_t offset = compiled.plan().offsets[storage];
      return offset >= 0 ? arena_.get() + offset : external.at(storage);
    };

    for (int i = 0; i < compiled.steps().size(); ++i) {
      const CompiledGraph::Step& step = compiled.steps()[i];
      PlacedNode placed{step.node};
      for (const std::string& name : step.node.node->inputs()) {
        placed.input_memory.push_back(address(name));
      }
      for (const std::string& name : step.node.node->outputs()) {
        placed.output_memory.push_back(address(name));
      }
      placed.workspace = arena_.get() + compiled.plan().workspace_offsets[i];
      steps_.push_back({step.kernel->prepare(placed), step.awaits, step.ready});
    }
    for (const v1::GraphInput& input : graph.inputs()) {
      inputs_[input.name()] = {address(input.name()),
                               static_cast<size_t>(compiled.type(input.name()).bytes())};
    }
    for (const std::string* output : {&graph.loss(), &graph.logits(), &graph.correct()}) {
      if (output->empty()) continue;
      outputs_[*output] = {reinterpret_cast<const float*>(address(*output)),
                           static_cast<size_t>(compiled.type(*output).elements())};
    }
  }

  absl::Span<std::byte> input(absl::string_view name) override {
    const auto it = inputs_.find(name);
    CHECK(it != inputs_.end()) << "the graph has no input '" << name << "'";
    return it->second;
  }

  absl::Span<const float> output(absl::string_view name) const override {
    const auto it = outputs_.find(name);
    CHECK(it != outputs_.end()) << "the graph has no output '" << name << "'";
    return it->second;
  }

  absl::Status Run(float loss_scale, ParameterFlow* flow) override {
    device_.Drive();
    for (const Step& step : steps_) {
      if (flow != nullptr) {
        for (int p : step.awaits) RETURN_IF_ERROR(flow->AwaitParameter(p));
      }
      RETURN_IF_ERROR(step.run(loss_scale));
      if (flow != nullptr) {
        for (int p : step.ready) RETURN_IF_ERROR(flow->GradientReady(p));
      }
    }
    return absl::OkStatus();
  }

  int64_t arena_bytes() const override { return arena_bytes_; }

 private:
  struct Step {
    NodeRun run;
    std::vector<int> awaits;
    std::vector<int> ready;
  };

  CpuDevice& device_;
  const Device::Memory arena_;
  const int64_t arena_bytes_;
  std::vector<Step> steps_;
  absl::flat_hash_map<std::string, absl::Span<std::byte>> inputs_;
  absl::flat_hash_map<std::string, absl::Span<const float>> outputs_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const v1::Graph& graph,
                                                           const Options& options) {
  CHECK(options.device != nullptr && options.device->is_cpu());
  CHECK_EQ(options.parameters.size(), graph.parameters_size());
  CHECK_EQ(options.gradients.size(), graph.gradients_size());
  ASSIGN_OR_RETURN(const CompiledGraph compiled, CompiledGraph::Create(graph, options.batch));
  Device::Memory arena = options.device->Allocate(compiled.plan().arena_bytes);
  if (arena == nullptr) {
    return WithReason(
        absl::ResourceExhaustedError(absl::StrCat(
            "activations of ", options.batch, " samples need ", compiled.plan().arena_bytes,
            " bytes, device '", options.device->name(), "' has ", options.device->available_bytes(),
            " left: use a smaller batch, more workers or a smaller model")),
        "MEMORY_EXHAUSTED");
  }
  return std::make_unique<CpuExecutor>(graph, compiled, options, std::move(arena));
}

}  // namespace muster
