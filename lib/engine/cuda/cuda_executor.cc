#include "lib/engine/cuda/cuda_executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "kernels/conversion.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/byte_values.h"
#include "kernels/cuda/progress.h"
#include "lib/collective/polled_wait.h"
#include "lib/engine/cuda/cuda_backend.h"
#include "lib/engine/cuda/device_faults.h"
#include "lib/engine/cuda/slice_copies.h"
#include "lib/engine/element_type.h"
#include "lib/engine/profile.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// Bytes of parameters or gradients in a segment: large enough that a transfer takes longer than a
// launch, small enough that transfers and nodes overlap.
constexpr int64_t kSegmentBytes = int64_t{8} << 20;
constexpr int64_t kStagingBytes = int64_t{32} << 20;
constexpr int64_t kScalarOutputsMax = 4;
// How long DrainStreams() waits for enqueued work. Intact GPUs finish it in this time, because by
// then no stream waits for peers.
constexpr absl::Duration kDrainTimeout = absl::Minutes(1);

// The most elements that travel at once, if they change their type or come from several places.
constexpr int64_t kPiece = kStagingBytes / int64_t{sizeof(float)};

size_t FloatBytes(int64_t elements) { return static_cast<size_t>(elements) * sizeof(float); }

// Enqueues a copy of `copy` between memory with elements of `width` bytes. Rows begin `to_stride`
// and `from_stride` elements apart.
absl::Status CopyRows(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride,
                      const SliceCopy& copy, int64_t width, cudaMemcpyKind kind,
                      cudaStream_t stream) {
  const auto row = static_cast<size_t>(copy.columns * width);
  // Strides of 2-D copies are below 2 GiB, and a parameter may be larger.
  if (copy.rows == 1) return StatusOf(cudaMemcpyAsync(to, from, row, kind, stream));
  return StatusOf(cudaMemcpy2DAsync(to, static_cast<size_t>(to_stride * width), from,
                                    static_cast<size_t>(from_stride * width), row,
                                    static_cast<size_t>(copy.rows), kind, stream));
}

std::string Described(const TypedNode& node) {
  auto append = [](std::string* out, const TensorType& type) { out->append(type.ToString()); };
  return absl::StrCat(absl::StrJoin(node.inputs, ", ", append), " -> ",
                      absl::StrJoin(node.outputs, ", ", append));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaExecutor>> CudaExecutor::Create(const v1::Graph& graph,
                                                                   const Options& options) {
  std::unique_ptr<CudaExecutor> executor(
      new CudaExecutor(options, static_cast<CudaDevice&>(*options.device)));
  if (absl::Status built = executor->Build(graph, options); !built.ok()) {
    return executor->GiveUp(std::move(built));
  }
  return executor;
}

absl::StatusOr<std::unique_ptr<Executor>> CreateCudaExecutor(const v1::Graph& graph,
                                                             const Executor::Options& options) {
  return CudaExecutor::Create(graph, options);
}

// The streams must be empty before the members free memory that the GPU may still use.
CudaExecutor::~CudaExecutor() {
  const absl::Status drained = DrainStreams([] {});
  LOG_IF(ERROR, !drained.ok()) << drained.message();
}

absl::Status CudaExecutor::DrainStreams(absl::FunctionRef<void()> abandon) {
  std::vector<PolledStream> streams;
  const auto add = [&](absl::string_view name, cudaStream_t stream) {
    streams.push_back({absl::StrCat("the ", name, " stream of ", device_.name()),
                       [stream] { return HasEnded(cudaStreamQuery(stream)); }});
  };
  add("upload", device_.upload());
  add("collective", device_.collective());
  add("compute", device_.compute());
  add("row", device_.rows());
  add("download", device_.download());
  absl::Status drained = Drain(abandon, streams, PolledWait({.timeout = kDrainTimeout}));
  if (absl::IsDeadlineExceeded(drained)) KeepCudaResources();
  return drained;
}

// Ends a run after the error `why`. Releases ranks that wait for collective operations which this
// device will not join, and waits until the streams are empty. Returns the error to report.
absl::Status CudaExecutor::GiveUp(absl::Status why) {
  const absl::Status drained = DrainStreams([&] {
    if (others() == nullptr) return;
    others()->Leave(absl::AbortedError(absl::StrCat(device_.name(), " gave up: ", why.message())));
  });
  if (absl::IsDeadlineExceeded(drained)) {
    return device_.Lose(absl::StrCat(why.message(), "; ", drained.message()));
  }
  if (device_.IsLost()) {
    return device_.Lose(absl::StrCat(why.message(), ", ", FaultedNodes()));
  }
  // The call was refused; the device and its streams are intact.
  return launching_ < 0 ? why : Annotate(why, absl::StrCat("node ", steps_[launching_].name));
}

// Describes the nodes that were running when the GPU failed. Uses the progress that the GPU wrote
// to host memory, because after such an error no event can be queried.
std::string CudaExecutor::FaultedNodes() const {
  std::vector<std::string> nodes;
  for (const Step& step : steps_) nodes.push_back(step.name);
  std::vector<int> segment_ends;
  for (const Segment& segment : segments_) segment_ends.push_back(segment.last);
  return WhereItFailed({.nodes = nodes,
                        .segment_ends = segment_ends,
                        .finished_segments = host_progress_ == nullptr ? 0 : finished_segments(),
                        .node = launches_wait_ ? launching_ : -1});
}

absl::Status CudaExecutor::AwaitNodes() {
  if (others() == nullptr) return StatusOf(cudaStreamSynchronize(device_.compute()));
  return others()->Await(buckets_ != nullptr
                             ? "values of parameters, for the nodes under way"
                             : "the other parts of tensors, for the nodes under way",
                         [&] { return HasEnded(cudaStreamQuery(device_.compute())); });
}

absl::Status CudaExecutor::AwaitGradients(const Segment& segment) {
  cudaEvent_t delivered = segment.delivered.get();
  if (others() == nullptr) return StatusOf(cudaEventSynchronize(delivered));
  for (int bucket : segment.full) RETURN_IF_ERROR(buckets_->AwaitSlice(bucket));
  return others()->Await(
      absl::StrCat("the gradients of nodes ", segment.first, " to ", segment.last - 1),
      [delivered] { return HasEnded(cudaEventQuery(delivered)); });
}

absl::Status CudaExecutor::Build(const v1::Graph& graph, const Options& options) {
  RETURN_IF_ERROR(device_.Drive());
  RETURN_IF_ERROR(PlaceScalars(graph));
  context_.stream = device_.compute();
  context_.cublas = device_.cublas();
  context_.cudnn = device_.cudnn();
  context_.tf32 = options.tf32;
  context_.deterministic = options.deterministic;
  context_.has_gradients = graph.gradients_size() > 0;
  context_.synchronised_devices = options.synchronised_devices;
  CudaKernels kernels(context_);
  // Gradients stay in the arena until they were added up in f32.
  CompiledGraph::Options compile{.batch = options.batch};
  compile.external_gradients.resize(graph.parameters_size(), false);
  ASSIGN_OR_RETURN(const std::unique_ptr<CompiledGraph> compiled,
                   CompiledGraph::Create(graph, compile, kernels));
  RETURN_IF_ERROR(PlaceParameters(*compiled, options));
  arena_bytes_ = compiled->arena_bytes();
  ASSIGN_OR_RETURN(
      arena_,
      AllocateCudaMemory(arena_bytes_, absl::StrCat("activations of ", options.batch, " samples")));
  RETURN_IF_ERROR(StatusOf(
      cudaMemsetAsync(arena_.get(), 0, static_cast<size_t>(arena_bytes_), device_.compute())));
  std::vector<std::byte*> parameters;
  for (const Parameter& parameter : parameters_) parameters.push_back(parameter.device.get());
  const CompiledGraph::Memory memory{.arena = arena_.get(), .parameters = parameters};
  for (int p = 0; p < graph.gradients_size(); ++p) {
    gradients_[p].device = compiled->Address(graph.gradients(p), memory);
  }
  // Kernels choose their algorithms here by running on this memory. Tensors with fixed values are
  // filled afterwards.
  for (int i = 0; i < static_cast<int>(compiled->steps().size()); ++i) {
    const CompiledGraph::Step& step = compiled->steps()[i];
    Step& placed = steps_.emplace_back();
    placed.name = absl::StrCat("'", step.node.node->name(), "' (", step.node.node->op(), ")");
    launching_ = i;
    placed.run = step.kernel.prepare(compiled->MemoryOf(i, memory));
    launching_ = -1;
    if (!gradients_.empty()) placed.ready = step.ready;
    if (profile_ != nullptr) {
      placed.profile_entry =
          profile_->Add(step.node.node->name(), step.node.node->op(), Described(step.node));
    }
  }
  RETURN_IF_ERROR(PlaceInputs(*compiled, memory, options));
  PlaceOutputs(*compiled, memory);
  RETURN_IF_ERROR(FillConstants(*compiled, memory));
  RETURN_IF_ERROR(CutSegments(*compiled));
  return WarmUp();
}

absl::Status CudaExecutor::PlaceScalars(const v1::Graph& graph) {
  scalar_bytes_ = sizeof(Scalars) + graph.inputs_size() * sizeof(int64_t);
  ASSIGN_OR_RETURN(scalars_, AllocateCudaMemory(scalar_bytes_, "scalars"));
  ASSIGN_OR_RETURN(host_scalars_, device_.Allocate(scalar_bytes_, "scalars"));
  ASSIGN_OR_RETURN(
      host_results_,
      device_.Allocate(sizeof(int64_t) + kScalarOutputsMax * sizeof(float), "scalar results"));
  ASSIGN_OR_RETURN(host_progress_, device_.Allocate(sizeof(int64_t), "progress"));
  auto* scalars = reinterpret_cast<Scalars*>(scalars_.get());
  context_.numbers = &scalars->numbers;
  context_.out_of_range = &scalars->out_of_range;
  context_.counted_targets = reinterpret_cast<const int64_t*>(scalars + 1);
  return absl::OkStatus();
}

absl::Status CudaExecutor::PlaceParameters(const CompiledGraph& compiled, const Options& options) {
  const v1::Graph& graph = compiled.graph();
  bool needs_staging = false;
  if (options.peers != nullptr && !graph.gradients().empty()) {
    CHECK(options.slices.empty()) << "a GPU with peers has a whole graph";
    RETURN_IF_ERROR(JoinPeers(compiled, *options.peers));
  }
  for (int p = 0; p < graph.parameters_size(); ++p) {
    const TensorType& type = compiled.type(graph.parameters(p).name());
    const int64_t bytes = CudaBytes(type, compiled.layout(graph.parameters(p).name()));
    Parameter& parameter = parameters_.emplace_back();
    parameter.host = options.parameters[p];
    parameter.is_narrow = IsNarrow(options, p);
    parameter.type = TypeOf(type.dtype);
    CHECK(!parameter.is_narrow || cuda::Bytes(parameter.type) == 2);
    parameter.elements = type.elements();
    parameter.slice = SliceOf(options, p, parameter.elements);
    needs_staging |= parameter.type != cuda::Type::kF32 && !parameter.is_narrow;
    if (buckets_ != nullptr) {
      parameter.device = buckets_->values(p);
      // Executors without gradients, which have no buckets, find the values there.
      device_.ShareMirror(parameter.host, parameter.slice, parameter.type, bytes, parameter.device);
    } else {
      ASSIGN_OR_RETURN(parameter.device,
                       device_.Mirror(parameter.host, parameter.slice, parameter.type, bytes));
    }
    if (graph.gradients().empty()) continue;
    Gradient& gradient = gradients_.emplace_back();
    gradient.host = options.gradients[p];
    if (buckets_ != nullptr) {
      gradient.sum = buckets_->gradients(p);
      continue;
    }
    if (gradient.host == nullptr) continue;
    ASSIGN_OR_RETURN(gradient.sum,
                     device_.Mirror(gradient.host, parameter.slice, cuda::Type::kF32,
                                    static_cast<int64_t>(FloatBytes(parameter.elements))));
  }
  if (needs_staging) {
    ASSIGN_OR_RETURN(staging_, AllocateCudaMemory(kStagingBytes, "parameters on their way in"));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::JoinPeers(const CompiledGraph& compiled, const ExecutorPeers& peers) {
  std::vector<DeviceValues> values;
  for (const v1::Parameter& parameter : compiled.graph().parameters()) {
    const TensorType& type = compiled.type(parameter.name());
    values.push_back({.elements = type.elements(),
                      .width = cuda::Bytes(TypeOf(type.dtype)),
                      .bytes = CudaBytes(type, compiled.layout(parameter.name()))});
  }
  ASSIGN_OR_RETURN(buckets_, CudaBuckets::Create(device_, peers, values));
  gathered_.resize(buckets_->layout().buckets.size());
  return absl::OkStatus();
}

absl::Status CudaExecutor::PlaceInputs(const CompiledGraph& compiled,
                                       const CompiledGraph::Memory& memory,
                                       const Options& options) {
  for (const v1::GraphInput& declared : compiled.graph().inputs()) {
    const size_t i = inputs_.size();
    Input& input = inputs_.emplace_back();
    input.name = declared.name();
    input.elements = compiled.type(input.name).elements();
    input.bytes = compiled.type(input.name).bytes();
    input.device = compiled.Address(input.name, memory);
    if (takes_rows_) {
      CHECK(options.row_values[i].empty() || declared.dtype() == v1::DTYPE_F32) << input.name;
      input.plane = PlaneOf(compiled.type(input.name).shape, options.row_values[i]);
      RETURN_IF_ERROR(PlaceRows(input, options.row_values[i]));
    } else {
      ASSIGN_OR_RETURN(input.host, device_.Allocate(static_cast<size_t>(input.bytes),
                                                    absl::StrCat("input '", input.name, "'")));
    }
  }
  ASSIGN_OR_RETURN(rows_arrived_, CreateCudaEvent());
  ASSIGN_OR_RETURN(rows_moved_, CreateCudaEvent());
  return absl::OkStatus();
}

absl::Status CudaExecutor::PlaceRows(Input& input, absl::Span<const kernels::ByteValues> tables) {
  input.row_bytes = tables.empty() ? input.bytes : input.elements;
  ASSIGN_OR_RETURN(input.rows,
                   AllocateCudaMemory(input.row_bytes, absl::StrCat("rows of '", input.name, "'")));
  RETURN_IF_ERROR(StatusOf(cudaMemsetAsync(
      input.rows.get(), 0, static_cast<size_t>(input.row_bytes), device_.compute())));
  if (tables.empty()) return absl::OkStatus();
  input.channels = std::ssize(tables);
  const auto bytes = static_cast<int64_t>(tables.size() * sizeof(kernels::ByteValues));
  ASSIGN_OR_RETURN(input.tables, AllocateCudaMemory(bytes, "what a byte stands for"));
  return StatusOf(cudaMemcpyAsync(input.tables.get(), tables.data(), static_cast<size_t>(bytes),
                                  cudaMemcpyHostToDevice, device_.compute()));
}

void CudaExecutor::PlaceOutputs(const CompiledGraph& compiled,
                                const CompiledGraph::Memory& memory) {
  const v1::Graph& graph = compiled.graph();
  for (const std::string* name : {&graph.loss(), &graph.logits(), &graph.correct()}) {
    if (name->empty()) continue;
    const TensorType& type = compiled.type(*name);
    Output& output = outputs_[*name];
    output.device = compiled.Address(*name, memory);
    output.dtype = type.dtype;
    output.elements = type.elements();
    output.columns = output.row = type.elements();
    if (compiled.layout(*name) == kPaddedColumns) {
      output.columns = type.shape.back();
      output.row = PaddedSize(output.columns);
    }
  }
}

absl::Status CudaExecutor::FillConstants(const CompiledGraph& compiled,
                                         const CompiledGraph::Memory& memory) {
  RETURN_IF_ERROR(StatusOf(cudaStreamSynchronize(device_.compute())));
  for (const v1::Node* constant : compiled.constants()) {
    const std::string& name = constant->outputs(0);
    const std::vector<std::byte> value = ConstantValue(*constant, compiled.type(name));
    RETURN_IF_ERROR(StatusOf(cudaMemcpy(compiled.Address(name, memory), value.data(), value.size(),
                                        cudaMemcpyHostToDevice)));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::CutSegments(const CompiledGraph& compiled) {
  int64_t awaited = 0, ready = 0;  // bytes in the present segment
  for (int i = 0; i < static_cast<int>(compiled.steps().size()); ++i) {
    const CompiledGraph::Step& step = compiled.steps()[i];
    int64_t more = 0;
    for (int p : step.awaits) more += static_cast<int64_t>(FloatBytes(parameters_[p].elements));
    // A segment ends after enough gradients are ready, and before a step that would make it wait
    // for too many parameters.
    // A collective node is alone in its segment. So it comes at the same place among the collective
    // operations on all GPUs, wherever else their segments end.
    const bool is_collective = step.kernel.is_collective;
    const bool awaits = step.awaits_step >= 0 && !launches_wait_;
    if (i == 0 || is_collective || awaits || segments_.back().is_collective ||
        ready >= kSegmentBytes || (more > 0 && awaited + more > kSegmentBytes)) {
      Segment& segment = segments_.emplace_back();
      segment.first = i;
      segment.is_collective = is_collective;
      ASSIGN_OR_RETURN(segment.arrived, CreateCudaEvent());
      ASSIGN_OR_RETURN(segment.computed, CreateCudaEvent());
      ASSIGN_OR_RETURN(segment.delivered, CreateCudaEvent());
      awaited = ready = 0;
    }
    Segment& segment = segments_.back();
    if (awaits) {
      const auto beside = std::ranges::find(segments_, step.awaits_step, &Segment::first);
      segment.awaits_segment = static_cast<int>(beside - segments_.begin());
      ASSIGN_OR_RETURN(beside->ended, CreateCudaEvent());
    }
    segment.last = i + 1;
    awaited += more;
    segment.awaits.insert(segment.awaits.end(), step.awaits.begin(), step.awaits.end());
    for (int p : steps_[i].ready) {
      segment.ready.push_back(p);
      ready += static_cast<int64_t>(FloatBytes(parameters_[p].elements));
    }
  }
  if (buckets_ == nullptr) return absl::OkStatus();
  // A bucket is full in the segment that makes its last gradient.
  std::vector<size_t> missing;
  for (const GradientBucket& bucket : buckets_->layout().buckets) {
    missing.push_back(bucket.parameters.size());
  }
  for (Segment& segment : segments_) {
    for (int p : segment.ready) {
      const int bucket = buckets_->layout().bucket_of[p];
      if (--missing[bucket] == 0) segment.full.push_back(bucket);
    }
  }
  return absl::OkStatus();
}

// Runs everything once, so that kernels and libraries are loaded, then captures the launches.
// Collective operations are left out, because another GPU's thread may still allocate memory, which
// can wait for the kernels of all GPUs. Inputs are zero; if rows are bytes, inputs have the value
// of byte 0.
absl::Status CudaExecutor::WarmUp() {
  RETURN_IF_ERROR(SendScalars({}, cuda::Export::kNone));
  RETURN_IF_ERROR(BringInputs());
  for (const Segment& segment : segments_) RETURN_IF_ERROR(LaunchSegment(segment));
  RETURN_IF_ERROR(StatusOf(cudaStreamSynchronize(device_.compute())));
  if (launches_wait_) return absl::OkStatus();  // no CUDA graphs
  for (Segment& segment : segments_) {
    if (segment.is_collective) continue;
    if (absl::Status captured = Capture(segment); !captured.ok()) {
      LOG(WARNING) << device_.name()
                   << ": no CUDA graph; kernels are launched one by one: " << captured.message();
      for (Segment& other : segments_) other.graph.reset();
      break;
    }
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::Capture(Segment& segment) {
  RETURN_IF_ERROR(
      StatusOf(cudaStreamBeginCapture(device_.compute(), cudaStreamCaptureModeThreadLocal)));
  const absl::Status launched = LaunchSteps(segment);
  launching_ = -1;
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(device_.compute(), &graph);
  const auto destroy = absl::MakeCleanup([&] {
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();  // clear the error, so that the next call does not return it
  });
  RETURN_IF_ERROR(launched);
  RETURN_IF_ERROR(StatusOf(ended));
  cudaGraphExec_t executable = nullptr;
  RETURN_IF_ERROR(StatusOf(cudaGraphInstantiate(&executable, graph, 0)));
  segment.graph.reset(executable);
  return StatusOf(cudaGraphUpload(executable, device_.compute()));
}

absl::Span<std::byte> CudaExecutor::input(absl::string_view name) {
  const auto it = std::ranges::find(inputs_, name, &Input::name);
  CHECK(it != inputs_.end()) << "the graph has no input '" << name << "'";
  CHECK(!takes_rows_) << "this executor has row_values: use TakeRows(), not input()";
  return {it->host.get(), static_cast<size_t>(it->bytes)};
}

// If a run is in progress, this function only returns the error. The run itself calls GiveUp(),
// because it knows which of its nodes were running.
absl::Status CudaExecutor::TakeRows(absl::Span<const absl::Span<const std::byte>> rows) {
  RETURN_IF_ERROR(device_.Drive());
  absl::Status sent = SendRows(rows);
  return sent.ok() || device_.is_running() ? sent : GiveUp(std::move(sent));
}

// Copies the rows to the GPU after the previous rows have been moved. The run that uses those moves
// them at its beginning, so the copies rarely wait for a run in progress.
absl::Status CudaExecutor::SendRows(absl::Span<const absl::Span<const std::byte>> rows) {
  CHECK(takes_rows_);
  CHECK_EQ(rows.size(), inputs_.size());
  RETURN_IF_ERROR(StatusOf(cudaStreamWaitEvent(device_.rows(), rows_moved_.get(), 0)));
  for (size_t i = 0; i < rows.size(); ++i) {
    CHECK_EQ(rows[i].size(), static_cast<size_t>(inputs_[i].row_bytes)) << inputs_[i].name;
    RETURN_IF_ERROR(StatusOf(cudaMemcpyAsync(inputs_[i].rows.get(), rows[i].data(), rows[i].size(),
                                             cudaMemcpyHostToDevice, device_.rows())));
  }
  return StatusOf(cudaEventRecord(rows_arrived_.get(), device_.rows()));
}

absl::Status CudaExecutor::BringInputs() {
  RETURN_IF_ERROR(StatusOf(cudaStreamWaitEvent(device_.compute(), rows_arrived_.get(), 0)));
  for (const Input& input : inputs_) {
    if (input.tables != nullptr) {
      RETURN_IF_ERROR(StatusOf(cuda::DecodeBytes(reinterpret_cast<float*>(input.device),
                                                 reinterpret_cast<const uint8_t*>(input.rows.get()),
                                                 input.elements,
                                                 reinterpret_cast<const float*>(input.tables.get()),
                                                 input.channels, input.plane, device_.compute())));
      continue;
    }
    const std::byte* from = takes_rows_ ? input.rows.get() : input.host.get();
    RETURN_IF_ERROR(StatusOf(cudaMemcpyAsync(input.device, from, static_cast<size_t>(input.bytes),
                                             cudaMemcpyDefault, device_.compute())));
  }
  return StatusOf(cudaEventRecord(rows_moved_.get(), device_.compute()));
}

absl::StatusOr<absl::Span<const float>> CudaExecutor::output(absl::string_view name) const {
  const auto it = outputs_.find(name);
  CHECK(it != outputs_.end()) << "the graph has no output '" << name << "'";
  Output& output = it->second;
  if (output.is_scalar()) return absl::MakeConstSpan(&output.scalar, 1);
  if (!output.is_fetched) RETURN_IF_ERROR(Fetch(name, output));
  return absl::MakeConstSpan(reinterpret_cast<const float*>(output.values.get()),
                             static_cast<size_t>(output.elements));
}

// Copies an output to the host in pieces, so that there is only one full copy on the host, not two.
absl::Status CudaExecutor::Fetch(absl::string_view name, Output& output) const {
  RETURN_IF_ERROR(device_.Drive());
  if (output.values == nullptr) {
    ASSIGN_OR_RETURN(output.values,
                     device_.Allocate(FloatBytes(output.elements),
                                      absl::StrCat("values of output '", name, "'")));
  }
  auto* values = reinterpret_cast<float*>(output.values.get());
  const kernels::ElementType type = ElementTypeOf(output.dtype);
  const int64_t width = cuda::Bytes(TypeOf(output.dtype));
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::vector<std::byte> raw(static_cast<size_t>(std::min(kPiece, output.elements) * width));
  for (int64_t start = 0, n; start < output.elements; start += n) {
    const int64_t column = start % output.columns;
    n = std::min(kPiece, output.columns - column);
    const std::byte* from = output.device + (start / output.columns * output.row + column) * width;
    RETURN_IF_ERROR(StatusOf(
        cudaMemcpy(raw.data(), from, static_cast<size_t>(n * width), cudaMemcpyDeviceToHost)));
    kernels::Convert(values + start, kernels::ElementType::kF32, raw.data(), type, n);
  }
  output.is_fetched = true;
  return absl::OkStatus();
}

absl::Status CudaExecutor::Run(const RunArguments& arguments, ParameterFlow* flow) {
  CHECK(micro_batches_ || (arguments.is_first_micro_batch && arguments.is_last_micro_batch));
  RETURN_IF_ERROR(device_.Drive());
  for (auto& [name, output] : outputs_) output.is_fetched = false;
  device_.set_running(true);
  CHECK(buckets_ == nullptr || arguments.tensor_parallel == nullptr)
      << "a GPU with peers has a whole graph";
  communicator_ = arguments.communicator;
  tensor_parallel_ = arguments.tensor_parallel;
  absl::Status computed = Compute(arguments, flow);
  device_.set_running(false);
  if (!computed.ok()) computed = GiveUp(std::move(computed));
  communicator_ = tensor_parallel_ = nullptr;
  if (!computed.ok()) return computed;
  // Enqueue() has copied the scalars in the order of `outputs_`.
  const auto* scalars =
      reinterpret_cast<const float*>(host_results_.get() + sizeof(cuda::OutOfRange));
  for (auto& [name, output] : outputs_) {
    if (output.is_scalar()) output.scalar = *scalars++;
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::Compute(const RunArguments& arguments, ParameterFlow* flow) {
  finished_segments() = 0;  // the run before has ended
  launching_ = -1;
  RETURN_IF_ERROR(Enqueue(arguments, flow));
  if (flow != nullptr) RETURN_IF_ERROR(flow->RowsMayCome());
  RETURN_IF_ERROR(Announce(arguments, flow));
  RETURN_IF_ERROR(AwaitNodes());
  // Waits for rows that were taken during the run, here or by another executor of the device, so
  // that the caller may reuse their memory. They have usually arrived by now.
  RETURN_IF_ERROR(StatusOf(cudaStreamSynchronize(device_.rows())));
  return CheckRange();
}

absl::Status CudaExecutor::Enqueue(const RunArguments& arguments, ParameterFlow* flow) {
  RETURN_IF_ERROR(SendScalars(
      arguments, arguments.is_first_micro_batch ? cuda::Export::kAssign : cuda::Export::kAdd));
  RETURN_IF_ERROR(BringInputs());
  // The first micro-batch of a step has brought the parameters, in this executor or in one that
  // shares its memory. Later micro-batches find them there.
  std::fill(gathered_.begin(), gathered_.end(), !arguments.is_first_micro_batch);
  for (const Segment& segment : segments_) {
    CHECK(!segment.is_collective || communicator_ != nullptr || tensor_parallel_ != nullptr)
        << "no other GPUs to meet";
    RETURN_IF_ERROR(BringParameters(segment, arguments.is_first_micro_batch, flow));
    RETURN_IF_ERROR(LaunchSegment(segment));
    if (arguments.is_last_micro_batch && !segment.ready.empty()) {
      RETURN_IF_ERROR(Download(segment));
    }
  }
  float* scalars = reinterpret_cast<float*>(host_results_.get() + sizeof(cuda::OutOfRange));
  for (const auto& [name, output] : outputs_) {
    if (!output.is_scalar()) continue;
    RETURN_IF_ERROR(StatusOf(cudaMemcpyAsync(scalars++, output.device, sizeof(float),
                                             cudaMemcpyDeviceToHost, device_.compute())));
  }
  return StatusOf(cudaMemcpyAsync(host_results_.get(), context_.out_of_range,
                                  sizeof(cuda::OutOfRange), cudaMemcpyDeviceToHost,
                                  device_.compute()));
}

absl::Status CudaExecutor::SendScalars(const RunArguments& arguments, cuda::Export gradients) {
  auto* scalars = reinterpret_cast<Scalars*>(host_scalars_.get());
  scalars->numbers = {.loss_scale = arguments.loss_scale,
                      .samples = samples_,
                      .batch = arguments.batch > 0 ? arguments.batch : samples_,
                      .first_position = arguments.first_position,
                      .seed = arguments.seed,
                      .step = arguments.step,
                      .gradients = gradients};
  scalars->out_of_range = {};
  auto* counted = reinterpret_cast<int64_t*>(scalars + 1);
  const int64_t inputs = (scalar_bytes_ - sizeof(Scalars)) / sizeof(int64_t);
  for (int64_t i = 0; i < inputs; ++i) {
    counted[i] = arguments.counted_targets.empty() ? -1 : arguments.counted_targets[i];
  }
  return StatusOf(cudaMemcpyAsync(scalars_.get(), scalars, static_cast<size_t>(scalar_bytes_),
                                  cudaMemcpyHostToDevice, device_.compute()));
}

// Awaits the segment's parameters, brings them to the GPU, and makes the segment's nodes wait for
// them.
absl::Status CudaExecutor::BringParameters(const Segment& segment, bool is_first,
                                           ParameterFlow* flow) {
  for (int p : segment.awaits) {
    if (flow != nullptr) RETURN_IF_ERROR(flow->AwaitParameter(p));
    if (buckets_ != nullptr) {
      RETURN_IF_ERROR(GatherBucket(buckets_->layout().bucket_of[p], flow));
    } else if (is_first) {
      RETURN_IF_ERROR(Upload(p, parameters_[p].slice, /*to=*/0));
    }
  }
  // All peers must issue collective operations in the same order. So all gather every bucket before
  // they reduce any, whatever their micro-batches are.
  if (!segment.ready.empty()) RETURN_IF_ERROR(GatherRest(flow));
  if (segment.awaits.empty()) return absl::OkStatus();
  cudaStream_t stream = buckets_ != nullptr ? buckets_->collective() : device_.upload();
  RETURN_IF_ERROR(StatusOf(cudaEventRecord(segment.arrived.get(), stream)));
  return StatusOf(cudaStreamWaitEvent(device_.compute(), segment.arrived.get(), 0));
}

absl::Status CudaExecutor::GatherRest(ParameterFlow* flow) {
  for (int bucket = 0; bucket < std::ssize(gathered_); ++bucket) {
    RETURN_IF_ERROR(GatherBucket(bucket, flow));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::GatherBucket(int bucket, ParameterFlow* flow) {
  if (gathered_[bucket]) return absl::OkStatus();
  gathered_[bucket] = true;
  const std::vector<int>& parameters = buckets_->layout().buckets[bucket].parameters;
  for (int p : parameters) {
    if (flow != nullptr) RETURN_IF_ERROR(flow->AwaitParameter(p));
  }
  for (const ValueRange& range : buckets_->slice(bucket)) {
    RETURN_IF_ERROR(Upload(range.parameter, {.offset = range.first, .run_elements = range.count},
                           /*to=*/range.first));
  }
  return buckets_->Gather(bucket);
}

// Uploads `values` of parameter `p` to element `to` of its memory. If their type changes on the
// device, they go through staging memory in pieces. The upload stream serializes the pieces, so
// that they can share this memory.
absl::Status CudaExecutor::Upload(int p, const ParameterSlice& values, int64_t to) {
  const Parameter& parameter = parameters_[p];
  const int64_t width = cuda::Bytes(parameter.type);
  const bool converts = parameter.type != cuda::Type::kF32 && !parameter.is_narrow;
  cudaStream_t stream = device_.upload();
  const auto* host = reinterpret_cast<const std::byte*>(parameter.host);
  const int64_t piece = converts || values.runs > 1 ? kPiece : values.elements();
  for (int64_t start = 0, n; start < values.elements(); start += n) {
    n = std::min(piece, values.elements() - start);
    std::byte* device = parameter.device.get() + (to + start) * width;
    std::byte* arrival = converts ? staging_.get() : device;
    const int64_t arriving = converts ? int64_t{sizeof(float)} : width;  // bytes of an element
    for (const SliceCopy& copy : CopiesOf(values, start, n)) {
      RETURN_IF_ERROR(CopyRows(arrival + (copy.slice - start) * arriving, copy.columns,
                               host + copy.whole * arriving, copy.stride, copy, arriving,
                               cudaMemcpyHostToDevice, stream));
    }
    if (!converts) continue;
    RETURN_IF_ERROR(StatusOf(
        cuda::Convert(device, parameter.type, staging_.get(), cuda::Type::kF32, n, stream)));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::LaunchSegment(const Segment& segment) {
  if (segment.awaits_segment >= 0) {
    RETURN_IF_ERROR(StatusOf(
        cudaStreamWaitEvent(device_.compute(), segments_[segment.awaits_segment].ended.get(), 0)));
  }
  if (segment.ended != nullptr) return LaunchBeside(segment);
  if (segment.graph == nullptr) return LaunchSteps(segment);
  return StatusOf(cudaGraphLaunch(segment.graph.get(), device_.compute()));
}

// Launches the segment in the collective stream, after the work that is in the compute stream by
// now. Another segment waits for it before the next collective operation in the compute stream. So
// these operations have one order, which NCCL requires, in both streams.
absl::Status CudaExecutor::LaunchBeside(const Segment& segment) {
  RETURN_IF_ERROR(StatusOf(cudaEventRecord(segment.computed.get(), device_.compute())));
  RETURN_IF_ERROR(StatusOf(cudaStreamWaitEvent(device_.collective(), segment.computed.get(), 0)));
  RETURN_IF_ERROR(LaunchSteps(segment));
  return StatusOf(cudaEventRecord(segment.ended.get(), device_.collective()));
}

absl::Status CudaExecutor::LaunchSteps(const Segment& segment) {
  // Kernels read the other numbers from device memory.
  const RunNumbers numbers{
      .communicator = communicator_,
      .tensor_parallel = tensor_parallel_,
      .asynchronous = segment.ended != nullptr ? device_.collective() : device_.compute()};
  for (int i = segment.first; i < segment.last; ++i) {
    const Step& step = steps_[i];
    launching_ = i;
    const auto start = std::chrono::steady_clock::now();
    if (step.run) RETURN_IF_ERROR(step.run(numbers));
    if (profile_ != nullptr) {
      RETURN_IF_ERROR(AwaitNodes());
      profile_->Record(step.profile_entry, std::chrono::steady_clock::now() - start);
    }
    RETURN_IF_ERROR(ExportGradients(step));
    launching_ = -1;
  }
  const int64_t number = &segment - segments_.data();
  return StatusOf(cuda::ShowProgress(reinterpret_cast<int64_t*>(host_progress_.get()), number + 1,
                                     device_.compute()));
}

absl::Status CudaExecutor::ExportGradients(const Step& step) {
  for (int p : step.ready) {
    const Gradient& gradient = gradients_[p];
    if (gradient.sum == nullptr) continue;
    RETURN_IF_ERROR(StatusOf(cuda::ExportGradient(
        reinterpret_cast<float*>(gradient.sum.get()), gradient.device, parameters_[p].type,
        context_.numbers, parameters_[p].elements, device_.compute())));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::Download(const Segment& segment) {
  cudaStream_t stream = device_.download();
  RETURN_IF_ERROR(StatusOf(cudaEventRecord(segment.computed.get(), device_.compute())));
  RETURN_IF_ERROR(StatusOf(cudaStreamWaitEvent(stream, segment.computed.get(), 0)));
  if (buckets_ != nullptr) {
    for (int bucket : segment.full) {
      RETURN_IF_ERROR(buckets_->Reduce(bucket, segment.computed.get()));
    }
  }
  for (int p : segment.ready) {
    if (buckets_ != nullptr) break;
    if (gradients_[p].host != nullptr) RETURN_IF_ERROR(DownloadGradient(p));
  }
  // The result of the range check must be known before the first gradient is announced.
  RETURN_IF_ERROR(
      StatusOf(cudaMemcpyAsync(host_results_.get(), context_.out_of_range, sizeof(cuda::OutOfRange),
                               cudaMemcpyDeviceToHost, stream)));
  return StatusOf(cudaEventRecord(segment.delivered.get(), stream));
}

absl::Status CudaExecutor::DownloadGradient(int p) {
  const ParameterSlice& slice = parameters_[p].slice;
  constexpr int64_t kWidth = sizeof(float);
  auto* host = reinterpret_cast<std::byte*>(gradients_[p].host);
  const std::byte* device = gradients_[p].sum.get();
  const int64_t piece = slice.runs > 1 ? kPiece : slice.elements();
  for (int64_t start = 0, n; start < slice.elements(); start += n) {
    n = std::min(piece, slice.elements() - start);
    for (const SliceCopy& copy : CopiesOf(slice, start, n)) {
      RETURN_IF_ERROR(CopyRows(host + copy.whole * kWidth, copy.stride,
                               device + copy.slice * kWidth, copy.columns, copy, kWidth,
                               cudaMemcpyDeviceToHost, device_.download()));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::Announce(const RunArguments& arguments, ParameterFlow* flow) {
  if (!arguments.is_last_micro_batch) return absl::OkStatus();
  for (const Segment& segment : segments_) {
    if (segment.ready.empty()) continue;
    RETURN_IF_ERROR(AwaitGradients(segment));
    RETURN_IF_ERROR(CheckRange());
    if (flow == nullptr) continue;
    for (int bucket : segment.full) RETURN_IF_ERROR(flow->SliceReduced(bucket));
    if (buckets_ != nullptr) continue;
    for (int p : segment.ready) RETURN_IF_ERROR(flow->GradientReady(p));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::CheckRange() const {
  cuda::OutOfRange out_of_range;
  std::memcpy(&out_of_range, host_results_.get(), sizeof(out_of_range));
  if (out_of_range.found == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "an id or a target of the batch is outside the model's range: ", out_of_range.id));
}

absl::StatusOr<Executor::MemoryNeed> PlanCudaMemory(const v1::Graph& graph,
                                                    const Executor::Options& options) {
  auto& device = static_cast<CudaDevice&>(*options.device);
  RETURN_IF_ERROR(device.Drive());
  CudaContext context;
  context.stream = device.compute();
  context.cublas = device.cublas();
  context.cudnn = device.cudnn();
  context.tf32 = options.tf32;
  context.deterministic = options.deterministic;
  context.has_gradients = graph.gradients_size() > 0;
  context.synchronised_devices = options.synchronised_devices;
  CudaKernels kernels(context);
  CompiledGraph::Options compile{.batch = options.batch};
  compile.external_gradients.resize(graph.parameters_size(), false);
  ASSIGN_OR_RETURN(const std::unique_ptr<CompiledGraph> compiled,
                   CompiledGraph::Create(graph, compile, kernels));
  Executor::MemoryNeed need{.arena_bytes = compiled->arena_bytes()};
  // Memory for the rows of the next run, as a worker uses it. Rows of bytes need less.
  for (const v1::GraphInput& input : graph.inputs()) {
    need.arena_bytes += compiled->type(input.name()).bytes();
  }
  bool needs_staging = false;
  for (int p = 0; p < graph.parameters_size(); ++p) {
    const std::string& name = graph.parameters(p).name();
    const TensorType& type = compiled->type(name);
    needs_staging |= type.dtype != v1::DTYPE_F32 && !Executor::IsNarrow(options, p);
    need.parameter_bytes += CudaBytes(type, compiled->layout(name));
    // The f32 sum over micro-batches.
    if (!graph.gradients().empty()) {
      need.parameter_bytes += type.elements() * static_cast<int64_t>(sizeof(float));
    }
  }
  if (needs_staging) need.arena_bytes += kStagingBytes;
  return need;
}

}  // namespace muster
