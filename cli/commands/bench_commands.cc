// Implements muster bench model. sync_bench.cc has muster bench sync.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/commands/data_bench.h"
#include "cli/commands/model_choice.h"
#include "cli/commands/session.h"
#include "cli/commands/sync_bench.h"
#include "google/protobuf/struct.pb.h"
#include "kernels/byte_values.h"
#include "lib/collective/lone_communicator.h"
#include "lib/data/dataset.h"
#include "lib/data/source/open_dataset.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "lib/engine/model_memory.h"
#include "lib/engine/profile.h"
#include "lib/graph/cost.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/model/model.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "lib/text/byte_size.h"

namespace muster::cli {
namespace {

constexpr int kWarmupRuns = 3;
constexpr uint64_t kSeed = 1;

struct BenchOptions {
  ModelChoice model;
  int steps = 20;
  bool profile = false;
  bool no_fuse = false;
  bool recompute = false;
  bool deterministic = false;
  bool autotuned = false;  // --autotuned was given
  std::string values;      // kStreamed (the default) or kResident
  int tensor_parallel = 1;
};

constexpr char kStreamed[] = "streamed";
constexpr char kResident[] = "resident";

struct BenchResult {
  std::string device;
  absl::Duration compile;  // time to build graph and executor
  absl::Duration first;    // the first step
  absl::Duration median;   // of the timed steps, forward and backward
  absl::Duration fastest;
  double flops = 0;       // of a step
  double peak_flops = 0;  // per second, of one large matrix product on the device
  int64_t tokens = 0;     // of a sample, if it is a sequence of ids
  int64_t batch = 0;
  int64_t arena_bytes = 0;
  std::string values;  // only for a GPU
  std::string profile_text;
  std::vector<Profile::Entry> profile;
};

// Runs a graph on random samples. A GPU gets the samples of a run before the previous run has
// ended, as in a job.
class Bench : private ParameterFlow {
 public:
  struct Options {
    int64_t batch = 0;
    bool tf32 = false;
    bool deterministic = false;
    bool resident = false;  // values and gradients stay on the device
    int ranks = 1;          // of a split graph
    Profile* profile = nullptr;
  };

  static absl::StatusOr<std::unique_ptr<Bench>> Create(const v1::Graph& graph, Device& device,
                                                       const Options& options) {
    auto bench = std::make_unique<Bench>(graph, device, options);
    const std::vector<absl::Span<const kernels::ByteValues>> as_declared(graph.inputs_size());
    ASSIGN_OR_RETURN(bench->memory_, ModelMemory::Create(bench->graph_, device, kSeed));
    ASSIGN_OR_RETURN(bench->executor_,
                     CreateExecutor(bench->graph_, {.batch = options.batch,
                                                    .device = &device,
                                                    .parameters = bench->memory_->parameters(),
                                                    .gradients = bench->memory_->gradients(),
                                                    .row_values = as_declared,
                                                    .micro_batches = options.resident,
                                                    .tf32 = options.tf32,
                                                    .deterministic = options.deterministic,
                                                    .profile = options.profile}));
    v1::DataSpec data;
    data.mutable_synthetic()->set_samples(options.batch);
    ASSIGN_OR_RETURN(const auto dataset, OpenDataset(data, bench->graph_));
    std::vector<int64_t> samples(options.batch);
    std::iota(samples.begin(), samples.end(), 0);
    std::vector<absl::Span<std::byte>> rows;
    for (const v1::GraphInput& input : bench->graph_.inputs()) {
      const auto bytes = static_cast<size_t>(options.batch * RowBytes(input));
      ASSIGN_OR_RETURN(Device::Memory memory,
                       device.Allocate(bytes, absl::StrCat("rows of '", input.name(), "'")));
      rows.emplace_back(bench->row_memory_.emplace_back(std::move(memory)).get(), bytes);
    }
    RETURN_IF_ERROR(dataset->Read(SamplesOf(/*epoch=*/0, samples), rows));
    bench->rows_.assign(rows.begin(), rows.end());
    RETURN_IF_ERROR(bench->executor_->TakeRows(bench->rows_));
    return bench;
  }

  Bench(const v1::Graph& graph, const Device& device, const Options& options)
      : graph_(graph), gives_rows_(!device.is_cpu()), resident_(options.resident) {
    if (options.ranks > 1) ranks_.emplace(options.ranks);
  }

  absl::StatusOr<absl::Duration> Time() {
    // With resident values, each run is like a micro-batch in the middle of a step: values are on
    // the device, and gradients are added up there. Only the first run transfers the values.
    const RunArguments arguments{.is_first_micro_batch = !resident_ || !has_values_,
                                 .is_last_micro_batch = !resident_,
                                 .tensor_parallel = ranks_ ? &*ranks_ : nullptr};
    const absl::Time begin = absl::Now();
    RETURN_IF_ERROR(executor_->Run(arguments, /*flow=*/gives_rows_ ? this : nullptr));
    has_values_ = true;
    return absl::Now() - begin;
  }

  // Returns the times of `runs` runs, in ascending order.
  absl::StatusOr<std::vector<absl::Duration>> Times(int runs) {
    std::vector<absl::Duration> times;
    for (int i = 0; i < runs; ++i) {
      ASSIGN_OR_RETURN(times.emplace_back(), Time());
    }
    std::ranges::sort(times);
    return times;
  }

  int64_t arena_bytes() const { return executor_->arena_bytes(); }

 private:
  absl::Status AwaitParameter(int) override { return absl::OkStatus(); }
  absl::Status GradientReady(int) override { return absl::OkStatus(); }
  absl::Status RowsMayCome() override { return executor_->TakeRows(rows_); }

  const v1::Graph graph_;
  std::unique_ptr<ModelMemory> memory_;
  std::vector<Device::Memory> row_memory_;
  std::vector<absl::Span<const std::byte>> rows_;  // one for each graph input
  const bool gives_rows_;                          // false for a CPU, which has them from the start
  const bool resident_;
  bool has_values_ = false;
  std::optional<LoneCommunicator> ranks_;
  std::unique_ptr<Executor> executor_;
};

// Measures the operations per second of one large square matrix product in the model's precision:
// the peak that this device reaches now.
absl::StatusOr<double> MeasurePeak(const ModelChoice& choice, Device& device) {
  const int64_t side = device.is_cpu() ? 2048 : 8192;
  // A GPU receives its operands in every run. A chain of products makes that time negligible.
  const int products = device.is_cpu() ? 1 : 50;
  v1::Graph product;
  product.set_name("product");
  for (const char* name : {"input", "target"}) {
    v1::GraphInput& input = *product.add_inputs();
    input.set_name(name);
    input.set_dtype(v1::DTYPE_F32);
    input.add_shape(-1);
    input.add_shape(name == std::string("input") ? side : 1);
  }
  const auto parameter = [&](const char* name, int64_t rows) {
    v1::Parameter& weight = *product.add_parameters();
    weight.set_name(name);
    weight.add_shape(rows);
    weight.add_shape(side);
    weight.mutable_initializer()->set_normal(0.01);
  };
  const auto node = [&](const char* op, std::vector<std::string> inputs,
                        const std::string& output) {
    v1::Node& added = *product.add_nodes();
    added.set_name(output);
    added.set_op(op);
    added.mutable_inputs()->Add(inputs.begin(), inputs.end());
    added.add_outputs(output);
  };
  parameter("weight", side);
  parameter("column", 1);
  std::string last = "input";
  for (int i = 0; i < products; ++i) {
    const std::string next = absl::StrCat("product", i);
    node("Linear", {last, "weight"}, next);
    last = next;
  }
  // Turns the result of the chain into a loss. Its time is negligible.
  node("Linear", {last, "column"}, "prediction");
  node("MeanSquaredError", {"prediction", "target"}, "loss");
  product.set_loss("loss");
  ASSIGN_OR_RETURN(const v1::Graph graph,
                   InferenceGraph(product, {.precision = choice.PrecisionValue()}));
  ASSIGN_OR_RETURN(
      const auto bench,
      Bench::Create(graph, device, {.batch = side, .tf32 = choice.precision == "tf32"}));
  RETURN_IF_ERROR(bench->Times(kWarmupRuns).status());
  ASSIGN_OR_RETURN(const std::vector<absl::Duration> times, bench->Times(5));
  return 2.0 * products * side * side * side / absl::ToDoubleSeconds(times.front());
}

// Returns INVALID_ARGUMENT if the device is a CPU and an option needs a GPU.
absl::Status CheckGpuOptions(const BenchOptions& options, const Device& device) {
  if (!device.is_cpu()) return absl::OkStatus();
  if (options.autotuned) {
    return absl::InvalidArgumentError(
        "--autotuned: a CPU device has one kernel for each shape and tries none; the option is "
        "for --device cuda:N");
  }
  if (!options.values.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--values ", options.values,
                     ": a CPU device computes on values where they are; the option is for "
                     "--device cuda:N"));
  }
  return absl::OkStatus();
}

absl::StatusOr<BenchResult> RunBench(const BenchOptions& options) {
  const ModelChoice& choice = options.model;
  ASSIGN_OR_RETURN(const v1::ModelSpec spec, choice.Spec());
  if (spec.has_external()) {
    return absl::InvalidArgumentError(
        "model.external: only its program can compute this model; measure the program itself, or "
        "name another model");
  }
  ASSIGN_OR_RETURN(const Model model, LoadModel(spec));
  ASSIGN_OR_RETURN(const auto device, CreateDevice(choice.device, choice.Threads()));
  RETURN_IF_ERROR(CheckGpuOptions(options, *device));
  BenchResult result{.device = absl::StrCat(device->name(), " (", device->description(), ")"),
                     .batch = choice.batch};
  if (!device->is_cpu()) result.values = options.values.empty() ? kStreamed : options.values;
  ASSIGN_OR_RETURN(result.peak_flops, MeasurePeak(choice, *device));
  const LoweringOptions lowering{.precision = choice.PrecisionValue(),
                                 .recompute = options.recompute,
                                 .fuse = !options.no_fuse,
                                 .only_loss = true,
                                 .tensor_parallel = {.degree = options.tensor_parallel}};
  ASSIGN_OR_RETURN(const v1::Graph forward, ForwardGraph(model.graph, lowering));
  ASSIGN_OR_RETURN(const TrainingCost cost, GraphCost(forward, choice.batch));
  result.flops = static_cast<double>(cost.forward.flops + cost.backward.flops);
  const v1::GraphInput& first_input = model.graph.inputs(0);
  if (first_input.dtype() == v1::DTYPE_I32 && first_input.shape_size() == 2) {
    result.tokens = first_input.shape(1);
  }

  const absl::Time begin = absl::Now();
  ASSIGN_OR_RETURN(const v1::Graph training, TrainingGraph(model.graph, lowering));
  Profile profile;
  ASSIGN_OR_RETURN(const auto bench,
                   Bench::Create(training, *device,
                                 {.batch = choice.batch,
                                  .tf32 = choice.precision == "tf32",
                                  .deterministic = options.deterministic,
                                  .resident = options.values == kResident,
                                  .ranks = options.tensor_parallel,
                                  .profile = options.profile ? &profile : nullptr}));
  result.compile = absl::Now() - begin;
  ASSIGN_OR_RETURN(result.first, bench->Time());
  RETURN_IF_ERROR(bench->Times(kWarmupRuns).status());
  profile.Clear();
  ASSIGN_OR_RETURN(const std::vector<absl::Duration> times, bench->Times(options.steps));
  result.median = times[times.size() / 2];
  result.fastest = times.front();
  result.arena_bytes = bench->arena_bytes();
  if (options.profile) {
    result.profile_text = profile.Report(/*nodes=*/25);
    result.profile = profile.entries();
  }
  return result;
}

std::string Text(const BenchResult& r, const BenchOptions& options) {
  const ModelChoice& choice = options.model;
  const double seconds = absl::ToDoubleSeconds(r.median);
  std::string text = absl::StrFormat(
      "device       %s, %s%s\n"
      "ready        %.2f s: graph, memory, kernels; the first step %.1f ms\n"
      "step         %.2f ms median, %.2f ms fastest: forward and backward of %d samples\n"
      "throughput   %.1f samples/s%s\n"
      "achieved     %.1f GFLOP in a step, %.1f GFLOP/s: %.0f %% of the %.1f GFLOP/s that one "
      "large product reaches here\n"
      "activations  %s\n",
      r.device, choice.precision,
      options.tensor_parallel > 1 ? absl::StrFormat(", rank 0 of %d alone", options.tensor_parallel)
                                  : "",
      absl::ToDoubleSeconds(r.compile), absl::ToDoubleMilliseconds(r.first), seconds * 1e3,
      absl::ToDoubleMilliseconds(r.fastest), r.batch, r.batch / seconds,
      r.tokens > 0 ? absl::StrFormat(", %.0f tokens/s", r.batch * r.tokens / seconds) : "",
      r.flops / 1e9, r.flops / seconds / 1e9, 100 * r.flops / seconds / r.peak_flops,
      r.peak_flops / 1e9, FormatBytes(r.arena_bytes));
  if (!r.profile_text.empty()) absl::StrAppend(&text, "\n", r.profile_text);
  return text;
}

google::protobuf::Struct Message(const Profile::Entry& entry) {
  google::protobuf::Struct message;
  auto& fields = *message.mutable_fields();
  fields["node"].set_string_value(entry.node);
  fields["op"].set_string_value(entry.op);
  fields["types"].set_string_value(entry.types);
  fields["seconds"].set_number_value(std::chrono::duration<double>(entry.least).count());
  return message;
}

google::protobuf::Struct Message(const BenchResult& r, const BenchOptions& options) {
  const ModelChoice& choice = options.model;
  google::protobuf::Struct message;
  auto& fields = *message.mutable_fields();
  const double seconds = absl::ToDoubleSeconds(r.median);
  const auto number = [&](const char* name, double value) { fields[name].set_number_value(value); };
  fields["device"].set_string_value(r.device);
  fields["precision"].set_string_value(choice.precision);
  if (options.tensor_parallel > 1) {
    fields["tensor_parallel"].set_number_value(options.tensor_parallel);
  }
  if (!r.values.empty()) {
    fields["values"].set_string_value(r.values);
    fields["deterministic"].set_bool_value(options.deterministic);
  }
  number("batch", static_cast<double>(r.batch));
  number("ready_seconds", absl::ToDoubleSeconds(r.compile));
  number("first_step_seconds", absl::ToDoubleSeconds(r.first));
  number("step_seconds", seconds);
  number("fastest_step_seconds", absl::ToDoubleSeconds(r.fastest));
  number("samples_per_second", r.batch / seconds);
  if (r.tokens > 0) number("tokens_per_second", r.batch * r.tokens / seconds);
  number("step_flops", r.flops);
  number("flops_per_second", r.flops / seconds);
  number("peak_flops_per_second", r.peak_flops);
  number("activation_bytes", static_cast<double>(r.arena_bytes));
  for (const Profile::Entry& entry : r.profile) {
    auto& values = *fields["profile"].mutable_list_value();
    *values.add_values()->mutable_struct_value() = Message(entry);
  }
  return message;
}

absl::Status PrintBench(const BenchOptions& options, const Session& session) {
  ASSIGN_OR_RETURN(const BenchResult result, RunBench(options));
  session.Print(Message(result, options), Text(result, options),
                absl::StrFormat("%.6f\n", absl::ToDoubleSeconds(result.median)));
  return absl::OkStatus();
}

}  // namespace

void AddBenchCommands(Command program, Session& session) {
  Command bench = program.AddCommand("bench", "Measure this machine",
                                     "muster bench model --zoo resnet50 --batch 8");
  bench.RequireCommand();
  auto options = std::make_shared<BenchOptions>();
  Command model =
      bench.AddCommand("model", "Time training steps on random samples",
                       "muster bench model --zoo gpt2 --device cuda:0 --batch 8 --precision bf16");
  options->model.AddOptions(model);
  model.AddOption("--steps", options->steps, "Number of timed steps").Within(1, 1000000);
  model.AddFlag("--profile", options->profile, "Print the time of each node");
  model.AddFlag("--no-fuse", options->no_fuse, "Without fused operators, for comparison");
  const Option deterministic = model.AddFlag("--deterministic", options->deterministic,
                                             "Only kernels that repeat to the bit");
  model.AddFlag("--autotuned", options->autotuned, "GPU: the fastest kernels (default)")
      .Excludes(deterministic);
  model.AddOption("--values", options->values, "GPU: streamed (as in a job) or resident")
      .OneOf({kStreamed, kResident});
  model.AddFlag("--recompute", options->recompute, "As training.recompute");
  model
      .AddOption("--tensor-parallel", options->tensor_parallel,
                 "Only the first of N ranks, without collectives")
      .Within(1, limits::kTensorParallelMax);
  model.SetAction([options, &session] { session.Fail(PrintBench(*options, session)); });
  AddDataBench(bench, session);
  AddSyncBench(bench, session);
}

}  // namespace muster::cli
