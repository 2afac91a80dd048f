#include "lib/engine/cpu/cpu_executor.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "kernels/byte_values.h"
#include "kernels/conversion.h"
#include "lib/engine/compiled_graph.h"
#include "lib/engine/cpu/cpu_device.h"
#include "lib/engine/cpu/cpu_kernels.h"
#include "lib/engine/element_type.h"
#include "lib/engine/memory_plan.h"
#include "lib/engine/profile.h"
#include "lib/status/status.h"

namespace muster {
namespace {

int64_t AlignedBytes(const TensorType& type) {
  return (type.bytes() + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

std::string Described(const TypedNode& node) {
  auto append = [](std::string* out, const TensorType& type) { out->append(type.ToString()); };
  return absl::StrCat(absl::StrJoin(node.inputs, ", ", append), " -> ",
                      absl::StrJoin(node.outputs, ", ", append));
}

// Returns whether kernels can use the slice in the memory of the whole tensor.
bool IsInPlace(const ParameterSlice& slice, int64_t element_bytes) {
  return slice.runs == 1 && slice.offset * element_bytes % kArenaAlignment == 0;
}

// A kernel writes a gradient directly to the caller's memory if it is f32 and there are no
// micro-batches.
CompiledGraph::Options CompileOptions(const v1::Graph& graph, const Executor::Options& options) {
  CompiledGraph::Options compile{.batch = options.batch};
  for (int p = 0; p < graph.parameters_size(); ++p) {
    const v1::Parameter& parameter = graph.parameters(p);
    const bool is_f32 =
        parameter.dtype() == v1::DTYPE_F32 || parameter.dtype() == v1::DTYPE_UNSPECIFIED;
    const bool has_place = (options.gradients.empty() || options.gradients[p] != nullptr) &&
                           (options.slices.empty() || IsInPlace(options.slices[p], sizeof(float)));
    compile.external_gradients.push_back(is_f32 && !options.micro_batches && has_place);
  }
  return compile;
}

// Returns whether the executor copies the parameter: the graph computes with it in another type
// than the caller's, or its slice is not in one place.
bool IsCopied(const CompiledGraph& compiled, const Executor::Options& options, int p) {
  const TensorType& type = compiled.type(compiled.graph().parameters(p).name());
  const bool is_converted = type.dtype != v1::DTYPE_F32 && !Executor::IsNarrow(options, p);
  return is_converted || !IsInPlace(Executor::SliceOf(options, p, type.elements()),
                                    kernels::ElementBytes(ElementTypeOf(type.dtype)));
}

int64_t CopyBytes(const CompiledGraph& compiled, const Executor::Options& options) {
  int64_t bytes = 0;
  for (int p = 0; p < compiled.graph().parameters_size(); ++p) {
    if (!IsCopied(compiled, options, p)) continue;
    bytes += AlignedBytes(compiled.type(compiled.graph().parameters(p).name()));
  }
  return bytes;
}

class CpuExecutor : public Executor {
 public:
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const v1::Graph& graph,
                                                          const Options& options);

  absl::Span<std::byte> input(absl::string_view name) override;
  absl::Status TakeRows(absl::Span<const absl::Span<const std::byte>> rows) override;

  absl::StatusOr<absl::Span<const float>> output(absl::string_view name) const override;

  absl::Status Run(const RunArguments& arguments, ParameterFlow* flow) override;

  int64_t arena_bytes() const override { return arena_bytes_; }

 private:
  struct Step {
    NodeRun run;
    std::vector<int> awaits;
    std::vector<int> ready;
    int profile_entry = -1;
  };

  struct Input {
    std::string name;
    absl::Span<std::byte> memory;
    absl::Span<const kernels::ByteValues> tables;  // see Options.row_values
    int64_t plane = 1;                             // elements with the same table
  };

  // A tensor inside the executor and its copy outside. Both may be the same memory.
  struct Exchange {
    std::byte* inside = nullptr;
    std::byte* outside = nullptr;  // of the whole tensor; null: there is none
    kernels::ElementType type = kernels::ElementType::kF32;
    kernels::ElementType outside_type = kernels::ElementType::kF32;
    ParameterSlice slice;  // of the tensor outside

    std::byte* InsideOf(int64_t run) const {
      return inside + run * slice.run_elements * kernels::ElementBytes(type);
    }
    std::byte* OutsideOf(int64_t run) const {
      return outside + (slice.offset + run * slice.stride) * kernels::ElementBytes(outside_type);
    }
    bool is_shared() const { return outside != nullptr && inside == OutsideOf(0); }
  };

  struct HostOutput {
    Exchange exchange;  // unless shared, `outside` is allocated at the first request
    Device::Memory converted = Device::Memory(nullptr, nullptr);
    bool is_converted = false;  // since the last run
  };

  CpuExecutor(const Options& options, Device::Memory arena, Device::Memory parameters)
      : device_(static_cast<CpuDevice&>(*options.device)),
        samples_(options.batch),
        micro_batches_(options.micro_batches),
        takes_rows_(!options.row_values.empty()),
        profile_(options.profile),
        arena_(std::move(arena)),
        parameter_copies_(std::move(parameters)) {}

  void Place(const CompiledGraph& compiled, const Options& options);
  void AddSteps(const CompiledGraph& compiled, const CompiledGraph::Memory& memory);
  void AddInputs(const CompiledGraph& compiled, const CompiledGraph::Memory& memory,
                 const Options& options);
  void AddOutputs(const CompiledGraph& compiled, const CompiledGraph::Memory& memory);

  RunNumbers NumbersOf(const RunArguments& arguments) const;
  absl::Status RunStep(const Step& step, const RunNumbers& numbers);
  void Import(int parameter);
  void Export(int parameter, const RunArguments& arguments);

  CpuDevice& device_;
  const int64_t samples_;
  const bool micro_batches_;
  const bool takes_rows_;
  Profile* const profile_;
  const Device::Memory arena_;
  const Device::Memory parameter_copies_;  // in the types the graph computes with
  int64_t arena_bytes_ = 0;
  std::vector<Step> steps_;
  std::vector<Exchange> parameters_;
  std::vector<Exchange> gradients_;
  std::vector<Input> inputs_;  // one per graph input
  mutable absl::flat_hash_map<std::string, HostOutput> outputs_;
};

absl::StatusOr<std::unique_ptr<Executor>> CpuExecutor::Create(const v1::Graph& graph,
                                                              const Options& options) {
  // Kernels are prepared for the device's number of threads.
  static_cast<CpuDevice&>(*options.device).Drive();
  CpuKernels kernels(options.synchronised_devices);
  ASSIGN_OR_RETURN(const std::unique_ptr<CompiledGraph> compiled,
                   CompiledGraph::Create(graph, CompileOptions(graph, options), kernels));
  const int64_t copy_bytes = CopyBytes(*compiled, options);
  ASSIGN_OR_RETURN(Device::Memory arena,
                   options.device->Allocate(
                       compiled->arena_bytes(),
                       absl::StrCat("activations of ", options.batch, " samples, and scratch,")));
  ASSIGN_OR_RETURN(Device::Memory copies,
                   options.device->Allocate(copy_bytes, "parameters in low precision"));
  std::unique_ptr<CpuExecutor> executor(
      new CpuExecutor(options, std::move(arena), std::move(copies)));
  executor->Place(*compiled, options);
  return executor;
}

void CpuExecutor::Place(const CompiledGraph& compiled, const Options& options) {
  const v1::Graph& graph = compiled.graph();
  arena_bytes_ = compiled.arena_bytes();
  std::byte* copy = parameter_copies_.get();
  std::vector<std::byte*> parameters, gradients;
  for (int p = 0; p < graph.parameters_size(); ++p) {
    const TensorType& type = compiled.type(graph.parameters(p).name());
    Exchange& parameter = parameters_.emplace_back();
    parameter.outside = reinterpret_cast<std::byte*>(options.parameters[p]);
    parameter.type = ElementTypeOf(type.dtype);
    if (Executor::IsNarrow(options, p)) parameter.outside_type = parameter.type;
    parameter.slice = Executor::SliceOf(options, p, type.elements());
    parameter.inside = parameter.OutsideOf(0);
    CHECK(!Executor::IsNarrow(options, p) || kernels::ElementBytes(parameter.type) == 2);
    if (IsCopied(compiled, options, p)) {
      parameter.inside = copy;
      copy += AlignedBytes(type);
    }
    parameters.push_back(parameter.inside);
    if (graph.gradients().empty()) continue;
    Exchange& gradient = gradients_.emplace_back(parameter);
    gradient.outside = reinterpret_cast<std::byte*>(options.gradients[p]);
    gradient.outside_type = kernels::ElementType::kF32;
    gradients.push_back(gradient.outside == nullptr ? nullptr : gradient.OutsideOf(0));
  }
  const CompiledGraph::Memory memory{
      .arena = arena_.get(), .parameters = parameters, .gradients = gradients};
  for (int p = 0; p < graph.gradients_size(); ++p) {
    gradients_[p].inside = compiled.Address(graph.gradients(p), memory);
  }
  AddSteps(compiled, memory);
  AddInputs(compiled, memory, options);
  AddOutputs(compiled, memory);
  for (const v1::Node* constant : compiled.constants()) {
    const std::string& name = constant->outputs(0);
    const std::vector<std::byte> value = ConstantValue(*constant, compiled.type(name));
    std::memcpy(compiled.Address(name, memory), value.data(), value.size());
  }
}

void CpuExecutor::AddSteps(const CompiledGraph& compiled, const CompiledGraph::Memory& memory) {
  for (int i = 0; i < compiled.steps().size(); ++i) {
    const CompiledGraph::Step& step = compiled.steps()[i];
    Step& placed = steps_.emplace_back();
    placed.run = step.kernel.prepare(compiled.MemoryOf(i, memory));
    placed.awaits = step.awaits;
    placed.ready = step.ready;
    if (profile_ != nullptr) {
      placed.profile_entry =
          profile_->Add(step.node.node->name(), step.node.node->op(), Described(step.node));
    }
  }
}

void CpuExecutor::AddInputs(const CompiledGraph& compiled, const CompiledGraph::Memory& memory,
                            const Options& options) {
  for (const v1::GraphInput& declared : compiled.graph().inputs()) {
    const std::string& name = declared.name();
    const size_t i = inputs_.size();
    const absl::Span<const kernels::ByteValues> tables =
        takes_rows_ ? options.row_values[i] : absl::Span<const kernels::ByteValues>();
    CHECK(tables.empty() || declared.dtype() == v1::DTYPE_F32) << name;
    inputs_.push_back({.name = name,
                       .memory = {compiled.Address(name, memory),
                                  static_cast<size_t>(compiled.type(name).bytes())},
                       .tables = tables,
                       .plane = PlaneOf(compiled.type(name).shape, tables)});
  }
}

void CpuExecutor::AddOutputs(const CompiledGraph& compiled, const CompiledGraph::Memory& memory) {
  const v1::Graph& graph = compiled.graph();
  for (const std::string* name : {&graph.loss(), &graph.logits(), &graph.correct()}) {
    if (name->empty()) continue;
    const TensorType& type = compiled.type(*name);
    std::byte* inside = compiled.Address(*name, memory);
    Exchange& exchange = outputs_[*name].exchange;
    exchange = {.inside = inside,
                .type = ElementTypeOf(type.dtype),
                .slice = {.run_elements = type.elements()}};
    if (type.dtype == v1::DTYPE_F32) exchange.outside = inside;
  }
}

absl::Span<std::byte> CpuExecutor::input(absl::string_view name) {
  const auto it = std::ranges::find(inputs_, name, &Input::name);
  CHECK(it != inputs_.end()) << "the graph has no input '" << name << "'";
  CHECK(!takes_rows_) << "this executor has row_values: use TakeRows(), not input()";
  return it->memory;
}

absl::Status CpuExecutor::TakeRows(absl::Span<const absl::Span<const std::byte>> rows) {
  CHECK(takes_rows_);
  CHECK_EQ(rows.size(), inputs_.size());
  device_.Drive();
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& [name, memory, tables, plane] = inputs_[i];
    CHECK_EQ(rows[i].size(), memory.size() / (tables.empty() ? 1 : sizeof(float))) << name;
    if (tables.empty()) {
      std::memcpy(memory.data(), rows[i].data(), memory.size());
    } else {
      kernels::DecodeBytes(reinterpret_cast<float*>(memory.data()),
                           reinterpret_cast<const uint8_t*>(rows[i].data()),
                           static_cast<int64_t>(rows[i].size()), tables, plane);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const float>> CpuExecutor::output(absl::string_view name) const {
  const auto it = outputs_.find(name);
  CHECK(it != outputs_.end()) << "the graph has no output '" << name << "'";
  auto& [exchange, converted, is_converted] = it->second;
  const auto elements = static_cast<size_t>(exchange.slice.elements());
  if (!exchange.is_shared() && !is_converted) {
    if (converted == nullptr) {
      ASSIGN_OR_RETURN(converted, device_.Allocate(elements * sizeof(float),
                                                   absl::StrCat("values of output '", name, "'")));
      exchange.outside = converted.get();
    }
    kernels::Convert(exchange.outside, kernels::ElementType::kF32, exchange.inside, exchange.type,
                     exchange.slice.elements());
    is_converted = true;
  }
  return absl::MakeConstSpan(reinterpret_cast<const float*>(exchange.outside), elements);
}

RunNumbers CpuExecutor::NumbersOf(const RunArguments& arguments) const {
  return {.loss_scale = arguments.loss_scale,
          .samples = samples_,
          .batch = arguments.batch > 0 ? arguments.batch : samples_,
          .first_position = arguments.first_position,
          .seed = arguments.seed,
          .step = arguments.step,
          .counted_targets =
              arguments.counted_targets.empty() ? nullptr : arguments.counted_targets.data(),
          .communicator = arguments.communicator,
          .tensor_parallel = arguments.tensor_parallel};
}

absl::Status CpuExecutor::RunStep(const Step& step, const RunNumbers& numbers) {
  if (!step.run) return absl::OkStatus();
  if (profile_ == nullptr) return step.run(numbers);
  const auto start = std::chrono::steady_clock::now();
  absl::Status status = step.run(numbers);
  profile_->Record(step.profile_entry, std::chrono::steady_clock::now() - start);
  return status;
}

void CpuExecutor::Import(int p) {
  const Exchange& parameter = parameters_[p];
  if (parameter.is_shared()) return;
  for (int64_t run = 0; run < parameter.slice.runs; ++run) {
    kernels::Convert(parameter.InsideOf(run), parameter.type, parameter.OutsideOf(run),
                     parameter.outside_type, parameter.slice.run_elements);
  }
}

void CpuExecutor::Export(int p, const RunArguments& arguments) {
  const Exchange& gradient = gradients_[p];
  if (gradient.outside == nullptr) return;
  // A shared gradient is in the caller's memory already; only the loss scale must be divided out.
  if (gradient.is_shared() && arguments.loss_scale == 1) return;
  const auto mode = gradient.is_shared() || arguments.is_first_micro_batch
                        ? kernels::ExportMode::kAssign
                        : kernels::ExportMode::kAdd;
  for (int64_t run = 0; run < gradient.slice.runs; ++run) {
    kernels::ExportGradient(reinterpret_cast<float*>(gradient.OutsideOf(run)),
                            gradient.InsideOf(run), gradient.type, 1 / arguments.loss_scale, mode,
                            gradient.slice.run_elements);
  }
}

absl::Status CpuExecutor::Run(const RunArguments& arguments, ParameterFlow* flow) {
  CHECK(micro_batches_ || (arguments.is_first_micro_batch && arguments.is_last_micro_batch));
  device_.Drive();
  for (auto& [name, output] : outputs_) output.is_converted = false;
  const RunNumbers numbers = NumbersOf(arguments);
  for (const Step& step : steps_) {
    for (int p : step.awaits) {
      if (flow != nullptr) RETURN_IF_ERROR(flow->AwaitParameter(p));
      Import(p);
    }
    RETURN_IF_ERROR(RunStep(step, numbers));
    for (int p : step.ready) {
      Export(p, arguments);
      if (flow != nullptr && arguments.is_last_micro_batch) RETURN_IF_ERROR(flow->GradientReady(p));
    }
  }
  // Last, because TakeRows() writes to the memory that the nodes read.
  return flow == nullptr ? absl::OkStatus() : flow->RowsMayCome();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> CreateCpuExecutor(const v1::Graph& graph,
                                                            const Executor::Options& options) {
  return CpuExecutor::Create(graph, options);
}

absl::StatusOr<Executor::MemoryNeed> PlanCpuMemory(const v1::Graph& graph,
                                                   const Executor::Options& options) {
  static_cast<CpuDevice&>(*options.device).Drive();
  CpuKernels kernels(options.synchronised_devices);
  ASSIGN_OR_RETURN(const std::unique_ptr<CompiledGraph> compiled,
                   CompiledGraph::Create(graph, CompileOptions(graph, options), kernels));
  int64_t outside = 0;
  for (const v1::Parameter& parameter : graph.parameters()) {
    outside += compiled->type(parameter.name()).elements() * static_cast<int64_t>(sizeof(float));
  }
  const int copies = graph.gradients().empty() ? 1 : 2;
  return Executor::MemoryNeed{.arena_bytes = compiled->arena_bytes(),
                              .parameter_bytes = copies * outside + CopyBytes(*compiled, options)};
}

}  // namespace muster
