#include "services/worker/training/trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "google/protobuf/util/message_differencer.h"
#include "lib/codec/codec.h"
#include "lib/collective/counted_communicator.h"
#include "lib/concurrency/cpu_quota.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/data/file/data_file.h"
#include "lib/data/image/image_maker.h"
#include "lib/data/input_use.h"
#include "lib/data/order/sample_order.h"
#include "lib/data/pipeline/input_budget.h"
#include "lib/data/pipeline/row_layout.h"
#include "lib/data/source/non_finite_input.h"
#include "lib/engine/peak_flops.h"
#include "lib/exchange/local_sgd_exchange.h"
#include "lib/exchange/ps_exchange.h"
#include "lib/exchange/ring_exchange.h"
#include "lib/graph/cost.h"
#include "lib/graph/gradient_order.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/limits/limits.h"
#include "lib/plan/batch_order.h"
#include "lib/plan/parameter_table.h"
#include "lib/plan/sum_tree.h"
#include "lib/status/status.h"
#include "lib/telemetry/trace.h"
#include "lib/transport/core/wire.h"
#include "services/worker/training/device_check.h"
#include "services/worker/training/non_finite_tensor.h"

namespace muster {
namespace {

using google::protobuf::util::MessageDifferencer;

constexpr int kReaderThreadsMax = 4;
constexpr int kStepTrack = 99;  // of the trace; numbers below are devices, numbers above are chunks

// Returns whether both plans have the same data set, with the same counts of targets.
bool ReadsTheSame(const v1::JobPlan& before, const v1::JobPlan& now) {
  return MessageDifferencer::Equals(before.spec().data(), now.spec().data()) &&
         MessageDifferencer::Equals(before.graph(), now.graph());
}

DeviceGrid GridOf(const Trainer::Options& options) {
  return {*options.plan, options.rank, std::ssize(options.devices)};
}

void Observe(prometheus::Histogram& histogram, absl::Duration time) {
  histogram.Observe(absl::ToDoubleSeconds(time));
}

void SetTime(absl::Time time, google::protobuf::Timestamp& to) {
  to.set_seconds(absl::ToUnixSeconds(time));
  to.set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(to.seconds()))));
}

// Measures the phases of a start.
class StartPhases {
 public:
  // Both outlive this object. `ended` is called at the end of every phase; it may be empty.
  StartPhases(WorkerMetrics* metrics, const std::function<void()>* ended)
      : metrics_(metrics), ended_(ended) {}

  // Ends the phase that began with the last end, and names it `phase`.
  void End(const std::string& phase) {
    const absl::Duration now = SteadyNow();
    metrics_->ShowStartPhase(phase, now - last_);
    absl::StrAppend(&text_, text_.empty() ? "" : ", ", phase, " ",
                    absl::FormatDuration(absl::Trunc(now - last_, absl::Milliseconds(1))));
    last_ = now;
    if (*ended_) (*ended_)();
  }

  // "1.2s (data 20ms, graph 5ms)"
  std::string Text() const {
    return absl::StrCat(absl::FormatDuration(absl::Trunc(last_ - begin_, absl::Milliseconds(1))),
                        " (", text_, ")");
  }

 private:
  WorkerMetrics* const metrics_;
  const std::function<void()>* const ended_;
  const absl::Duration begin_ = SteadyNow();
  absl::Duration last_ = begin_;
  std::string text_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(Options options) {
  auto trainer = std::unique_ptr<Trainer>(new Trainer(std::move(options)));
  RETURN_IF_ERROR(trainer->Open());
  return trainer;
}

Trainer::~Trainer() = default;

absl::Status Trainer::Open() {
  const v1::JobPlan& plan = *options_.plan;
  const v1::PlanWorker& self = plan.workers(ToInt(options_.rank));
  StartPhases phases(options_.metrics, &options_.advanced);
  if (dataset_ == nullptr) RETURN_IF_ERROR(OpenData());
  evaluation_labels_ = CountEvaluationLabels();
  phases.End("data");

  RETURN_IF_ERROR(CheckNumberOfDevices(plan, std::ssize(options_.devices)));
  const DeviceGrid grid = GridOf(options_);
  std::vector<std::shared_ptr<const LaneGraphs>> graphs;  // by rank
  for (int rank = 0; rank < grid.ranks(); ++rank) {
    ASSIGN_OR_RETURN(graphs.emplace_back(), LowerGraphs(grid.rank_of(rank)));
  }
  layout_ = LayOut(graphs[0]->training, grid.replicas());
  phases.End("graph");

  const bool has_memory = parameters_ != nullptr;  // of the previous generation
  if (!has_memory) {
    team_ = std::make_unique<DeviceTeam>(grid.devices());
    lanes_.resize(grid.devices());
  }
  RETURN_IF_ERROR(team_->Run([&](int i) {
    const int replica = grid.replica_of(i), rank = grid.rank_of(i).rank;
    DeviceLane::Options lane{
        .index = i,
        .replica = replica,
        .rank = rank,
        .device = options_.devices[i],
        .threads = options_.threads_per_device,
        .place_nearby = options_.place_gpus,
        .graphs = graphs[rank],
        .training = plan.spec().training(),
        .batch_size = plan.spec().data().batch_size(),
        .first_position = self.first_position(),
        .runs = grid.RunsOf(replica),
        .replicas = grid.replicas(),
        .contributes_each_run = grid.leaves().leaves > 1,
        .evaluation = grid.HeldOutOf(replica, dataset_->evaluation_samples()),
        .evaluation_at_once = grid.HeldOutAtOnce(replica),
        .dataset = dataset_.get(),
        .trace = options_.tuning.trace,
    };
    if (has_memory) {
      lanes_[i]->Reshare(std::move(lane));
    } else {
      ASSIGN_OR_RETURN(lanes_[i], DeviceLane::Create(std::move(lane)));
    }
    if (Trace* trace = options_.tuning.trace) {
      trace->NameTrack(i, absl::StrCat("device ", i, " (", lanes_[i]->device().name(), ")"));
    }
    return absl::OkStatus();
  }));
  if (Trace* trace = options_.tuning.trace) trace->NameTrack(kStepTrack, "steps");
  RETURN_IF_ERROR(ShareInputMemory());
  if (!has_memory) RETURN_IF_ERROR(AllocateMemory());
  RETURN_IF_ERROR(CheckDevices(plan, grid, DevicesInUse()));
  phases.End("memory");
  CountFlops();
  const std::vector<float*> parameters = parameters_->pointers();
  narrow_parameters_ = NarrowParameters(*graphs[0]);
  RETURN_IF_ERROR(
      team_->Run([&](int i) { return lanes_[i]->Build(parameters, narrow_parameters_); }));
  phases.End("compile");

  RETURN_IF_ERROR(Connect());
  LOG(INFO) << plan.job() << " generation " << plan.generation() << ": ready after "
            << phases.Text() << " on " << grid.devices() << " x "
            << lanes_[0]->device().description();
  return absl::OkStatus();
}

// Indexing large data takes long, so every read counts as progress of the start.
absl::Status Trainer::OpenData() {
  const v1::JobPlan& plan = *options_.plan;
  const ReadWatch watch([this]() -> absl::Status {
    if (options_.stopping.stop_requested()) return absl::CancelledError("the job was released");
    if (options_.advanced) options_.advanced();
    return absl::OkStatus();
  });
  RETURN_IF_ERROR(options_.paths.CheckData(plan.spec().data()));
  ASSIGN_OR_RETURN(dataset_,
                   options_.open_data(plan.spec().data(), plan.graph(),
                                      {.block_bytes_max = BlockBytesMax(plan.spec().data()),
                                       .index_folder = options_.index_folder,
                                       .make_images = ImageMaker::Create}));
  ASSIGN_OR_RETURN(counted_evaluation_targets_, CountEvaluationTargets(*dataset_, plan.graph()));
  return absl::OkStatus();
}

absl::Status Trainer::Connect() {
  next_step_ = options_.plan->first_step();
  step_ = options_.plan->first_step();
  {
    absl::MutexLock lock(&timing_mu_);
    timing_.Clear();
  }
  RETURN_IF_ERROR(MakeExchange());
  RETURN_IF_ERROR(MakeReduction());
  for (const auto& lane : lanes_) lane->Connect(exchange_.get(), reduction_.get());
  return absl::OkStatus();
}

// Counts FLOPs for the metrics. No other part depends on them: if the cost of a model cannot be
// computed, the metric stays 0 and training works.
void Trainer::CountFlops() {
  const v1::JobPlan& plan = *options_.plan;
  const absl::StatusOr<TrainingCost> cost =
      GraphCost(plan.graph(), plan.workers(ToInt(options_.rank)).samples());
  LOG_IF(WARNING, !cost.ok()) << plan.job() << ": its FLOPs are unknown: " << cost.status();
  step_flops_ = cost.ok() ? static_cast<double>(cost->forward.flops + cost->backward.flops) : 0;
  const v1::Precision precision = plan.spec().training().precision();
  double peak = 0;
  for (const auto& lane : lanes_) {
    const std::optional<double> of_device =
        options_.peak_flops > 0 ? options_.peak_flops
                                : PeakFlops(lane->device().description(), precision);
    if (!of_device) return options_.metrics->ShowPeak(0);
    peak += *of_device;
  }
  options_.metrics->ShowPeak(peak);
}

// Returns whether the next generation can use the memory of this one. A job's model, data, training
// and mode never change, unless the coordinator is faulty; the shares of the workers change.
// Besides another number of devices, two cases need new memory:
// - GPUs that reduce among themselves: they may still wait for each other in the middle of the
//   abandoned step.
// - A worker with a shard of its own (allreduce): the memory of the ring belongs to the shard.
bool Trainer::MemoryFits(const Options& next) const {
  if (gpus_ != nullptr || options_.shard != nullptr || next.shard != nullptr) return false;
  const v1::JobPlan& before = *options_.plan;
  const v1::JobPlan& now = *next.plan;
  return options_.devices == next.devices && GridOf(options_).devices() == GridOf(next).devices() &&
         GridOf(options_).ranks() == GridOf(next).ranks() &&
         MessageDifferencer::Equals(before.spec().training(), now.spec().training()) &&
         MessageDifferencer::Equals(before.spec().sync(), now.spec().sync()) &&
         ReadsTheSame(before, now);
}

bool Trainer::HasTheShareOf(const Options& next) const {
  const v1::JobPlan& before = *options_.plan;
  const v1::JobPlan& now = *next.plan;
  const v1::PlanWorker& share_before = before.workers(ToInt(options_.rank));
  const v1::PlanWorker& share = now.workers(ToInt(next.rank));
  return options_.rank == next.rank && before.workers_size() == now.workers_size() &&
         share_before.first_position() == share.first_position() &&
         share_before.samples() == share.samples();
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Continue(std::unique_ptr<Trainer> before,
                                                           Options options) {
  if (before->options_.plan->job_number() != options.plan->job_number()) return nullptr;
  if (!before->MemoryFits(options)) {
    auto trainer = std::unique_ptr<Trainer>(new Trainer(std::move(options)));
    if (ReadsTheSame(*before->options_.plan, *trainer->options_.plan)) {
      trainer->dataset_ = std::move(before->dataset_);
      trainer->counted_evaluation_targets_ = std::move(before->counted_evaluation_targets_);
    }
    before.reset();  // frees its memory on the devices before Open() allocates
    RETURN_IF_ERROR(trainer->Open());
    return trainer;
  }
  before->reduction_.reset();  // it uses the exchange, so it must be destroyed first
  before->leaf_sums_.reset();
  before->exchange_.reset();
  before->slots_.clear();
  before->pipeline_.reset();
  before->pending_.reset();
  before->cancelled_ = false;
  before->loss_was_nonfinite_ = false;
  before->evaluation_was_nonfinite_ = false;
  before->failed_step_ = -1;
  const bool same_share = before->HasTheShareOf(options);
  before->options_ = std::move(options);
  if (!same_share) {
    RETURN_IF_ERROR(before->Open());
    return before;
  }
  RETURN_IF_ERROR(before->Connect());
  LOG(INFO) << before->options_.plan->job() << " generation " << before->options_.plan->generation()
            << ": goes on with what it has";
  return before;
}

// Runs `task` on the thread of the first device, which touches the memory that it allocates.
absl::Status Trainer::OnFirstDevice(absl::FunctionRef<absl::Status()> task) {
  return team_->Run([&](int i) { return i == 0 ? task() : absl::OkStatus(); });
}

// GPUs that reduce among themselves share one host buffer for the gradients, and each fills its
// slices. The ranks of a replica share one, too. Every other device has a buffer of its own.
absl::Status Trainer::AllocateMemory() {
  const v1::JobPlan& plan = *options_.plan;
  const DeviceGrid grid = GridOf(options_);
  RETURN_IF_ERROR(OnFirstDevice([&]() -> absl::Status {
    ASSIGN_OR_RETURN(parameters_, TensorSlab::Create(lanes_[0]->device(), plan.graph(), layout_));
    return absl::OkStatus();
  }));
  RETURN_IF_ERROR(MakeGpuGroup());
  const int sharing = reduces_on_gpus() ? grid.devices() : grid.ranks();
  RETURN_IF_ERROR(team_->Run([&](int i) {
    return i % sharing == 0 ? lanes_[i]->Allocate(plan.graph(), layout_) : absl::OkStatus();
  }));
  return team_->Run([&](int i) {
    if (i % sharing != 0) lanes_[i]->ShareGradients(*lanes_[i - i % sharing]);
    if (!reduces_on_gpus()) return absl::OkStatus();
    return lanes_[i]->JoinPeers(*gpus_, layout_, parameters_->base(), options_.metrics->all());
  });
}

UsedDevices Trainer::DevicesInUse() const {
  UsedDevices devices{.gpus_meet = gpus_ != nullptr};
  for (const auto& lane : lanes_) ++(lane->device().is_cpu() ? devices.cpus : devices.gpus);
  return devices;
}

// Makes a group of the GPUs: they reduce the gradients of their samples, or are the ranks of one
// replica.
absl::Status Trainer::MakeGpuGroup() {
  if (lanes_.size() == 1 || DevicesInUse().cpus > 0) return absl::OkStatus();
  auto group = NcclGroup::Create(static_cast<int>(lanes_.size()));
  if (group.ok()) {
    gpus_ = *std::move(group);
    return absl::OkStatus();
  }
  const std::string why(group.status().message());
  if (GridOf(options_).ranks() > 1) {
    return TensorParallelRefused(*options_.plan, std::ssize(options_.devices),
                                 absl::StrCat("GPUs need NCCL for it: ", why));
  }
  LOG(WARNING) << options_.plan->job() << ": the GPUs' gradients are summed on the host: " << why;
  return absl::OkStatus();
}

// Orders buckets by when their gradients become final. Parameters have the same layout as their
// gradients.
GradientLayout Trainer::LayOut(const v1::Graph& graph, int replicas) const {
  std::vector<int64_t> elements;
  for (const v1::Parameter& parameter : options_.plan->graph().parameters()) {
    elements.push_back(ElementCount(parameter));
  }
  return LayOutGradients(elements, GradientOrder(graph), replicas);
}

// Returns the last round of the step in the reduction, see DeviceLane::Step().
int64_t Trainer::LastRoundOf(int64_t step) const {
  return leaf_sums_ == nullptr ? step : (step + 1) * GridOf(options_).leaves().leaves - 1;
}

absl::Status Trainer::MakeReduction() {
  const v1::JobPlan& plan = *options_.plan;
  const DeviceGrid grid = GridOf(options_);
  const SumNode node = grid.leaves();
  GradientReduction::Options reduction{
      .layout = layout_, .rounds_per_step = node.leaves, .ranks = grid.ranks()};
  for (const v1::Parameter& parameter : plan.graph().parameters()) {
    reduction.frozen.push_back(TreatmentOf(plan.spec().training(), parameter).frozen);
  }
  std::vector<ChunkId> chunks;  // by piece
  for (const ChunkId id : NumbersBelow<ChunkId>(plan.chunks_size())) {
    const v1::PlanChunk& chunk = plan.chunks(ToInt(id));
    if (chunk.slot() != 0) continue;
    const int64_t begin = layout_.offsets[chunk.parameter()] + chunk.offset();
    reduction.pieces.push_back({begin, begin + chunk.elements()});
    chunks.push_back(id);
  }
  leaf_sums_.reset();
  if (node.leaves > 1) {
    ASSIGN_OR_RETURN(leaf_sums_,
                     LeafSums::Create(lanes_[0]->device(), node, lanes_[0]->gradients().base(),
                                      layout_.elements, static_cast<int>(chunks.size())));
  }
  reduction.reduced = [this, leaves = node.leaves, pieces = reduction.pieces,
                       chunks = std::move(chunks)](int piece, int64_t round) {
    const GradientReduction::Piece& floats = pieces[piece];
    if (leaf_sums_ != nullptr && !leaf_sums_->Add(piece, floats.begin, floats.end)) {
      return absl::OkStatus();
    }
    return exchange_->Push(chunks[piece], round / leaves);
  };
  if (grid.replicas() > 1 && !reduces_on_gpus()) {
    group_ = std::make_unique<SharedMemoryGroup>(grid.replicas());
  }
  for (int replica = 0; replica < grid.replicas(); ++replica) {
    reduction.memory.push_back(lanes_[grid.first_device(replica)]->gradients().base());
    if (group_ != nullptr) reduction.communicators.push_back(Join(*group_, replica));
  }
  reduction_ = std::make_unique<GradientReduction>(std::move(reduction));
  SynchroniseNorms();
  return JoinRanks();
}

// Returns whether several GPUs compute samples of their own.
bool Trainer::reduces_on_gpus() const { return gpus_ != nullptr && GridOf(options_).ranks() == 1; }

std::unique_ptr<CountedCommunicator> Trainer::Join(SharedMemoryGroup& group, int rank) const {
  return std::make_unique<CountedCommunicator>(group.Join(rank), CollectiveLibrary::kSharedMemory,
                                               options_.metrics->all());
}

// Makes new groups for the norms of CPU devices: errors of a group are final, and a device that
// leaves a step aborts the groups. Devices of the same rank in their replicas normalise together.
// GPUs use the group of their gradients.
void Trainer::SynchroniseNorms() {
  const DeviceGrid grid = GridOf(options_);
  if (grid.replicas() == 1 || gpus_ != nullptr) return;
  if (SynchronisedNode(options_.plan->graph()) == nullptr) return;
  std::vector<std::unique_ptr<SharedMemoryGroup>> norms;  // by rank
  for (int i = 0; i < grid.devices(); ++i) {
    if (i < grid.ranks()) norms.push_back(std::make_unique<SharedMemoryGroup>(grid.replicas()));
    lanes_[i]->SynchroniseNorms(Join(*norms[grid.rank_of(i).rank], grid.replica_of(i)));
  }
  norms_ = std::move(norms);  // no lane is in the groups before
}

// Makes a new group for the ranks of each replica, like SynchroniseNorms().
absl::Status Trainer::JoinRanks() {
  const DeviceGrid grid = GridOf(options_);
  ranks_aborted_ = false;
  if (grid.ranks() == 1) return absl::OkStatus();
  if (gpus_ != nullptr) {
    return team_->Run([&](int i) -> absl::Status {
      RETURN_IF_ERROR(lanes_[i]->device().Use());
      ASSIGN_OR_RETURN(std::unique_ptr<Communicator> joined, gpus_->Join(i));
      lanes_[i]->JoinRanks(std::make_unique<CountedCommunicator>(
          std::move(joined), CollectiveLibrary::kNccl, options_.metrics->all()));
      return absl::OkStatus();
    });
  }
  std::vector<std::unique_ptr<SharedMemoryGroup>> replicas;
  for (int i = 0; i < grid.devices(); ++i) {
    if (grid.rank_of(i).rank == 0) {
      replicas.push_back(std::make_unique<SharedMemoryGroup>(grid.ranks()));
    }
    lanes_[i]->JoinRanks(Join(*replicas.back(), grid.rank_of(i).rank));
  }
  ranks_ = std::move(replicas);
  return absl::OkStatus();
}

// Forgets the step that a device abandoned, after other devices contributed buckets to it. No part
// of the step has left this worker, because no bucket was complete.
absl::Status Trainer::RenewReduction() {
  if (gpus_ != nullptr) {
    return absl::UnimplementedError(
        "this worker was overtaken in the middle of a step, which several GPUs cannot abandon one "
        "by one: with sync.backup_workers use workers of one GPU");
  }
  reduction_.reset();
  RETURN_IF_ERROR(MakeReduction());
  for (const auto& lane : lanes_) lane->Connect(exchange_.get(), reduction_.get());
  return absl::OkStatus();
}

absl::Status Trainer::MakeExchange() {
  if (options_.shard != nullptr) return MakeRing();
  const v1::JobPlan& plan = *options_.plan;
  PsExchange::Options options{.plan = options_.plan,
                              .rank = options_.rank,
                              .transport = options_.transport,
                              .parameters = parameters_->tensors(),
                              .memory = {parameters_->memory()},
                              .tuning = TuningOfJob(),
                              .metrics = &options_.metrics->exchange};
  if (plan.spec().sync().mode() != v1::LOCAL_SGD) {
    options.gradients = lanes_[0]->gradients().tensors();
    options.narrow_parameters = narrow_parameters_;
    options.memory.push_back(lanes_[0]->gradients().memory());
    ASSIGN_OR_RETURN(exchange_, PsExchange::Create(std::move(options)));
    return absl::OkStatus();
  }
  for (size_t i = 0; i < OptimizerSlotNames(plan.spec().training().optimizer()).size(); ++i) {
    ASSIGN_OR_RETURN(slots_.emplace_back(),
                     TensorSlab::Create(lanes_[0]->device(), plan.graph(), layout_));
    options.slots.push_back(slots_.back()->tensors());
    options.memory.push_back(slots_.back()->memory());
  }
  ASSIGN_OR_RETURN(exchange_,
                   LocalSgdExchange::Create({.exchange = std::move(options),
                                             .gradients = lanes_[0]->gradients().tensors()}));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const LaneGraphs>> Trainer::LowerGraphs(
    const TensorParallel& part) const {
  const v1::TrainingSpec& training = options_.plan->spec().training();
  const LoweringOptions lowering{.precision = training.precision(),
                                 .recompute = training.recompute(),
                                 .only_loss = true,
                                 .tensor_parallel = part};
  auto graphs = std::make_shared<LaneGraphs>();
  if (part.degree > 1) {
    ASSIGN_OR_RETURN(graphs->slices, ParameterSlices(options_.plan->graph(), lowering));
  }
  ASSIGN_OR_RETURN(graphs->training, TrainingGraph(options_.plan->graph(), lowering));
  ASSIGN_OR_RETURN(graphs->inference, InferenceGraph(options_.plan->graph(), lowering));
  return graphs;
}

// Marks the parameters that arrive in the type in which the devices compute.
std::vector<bool> Trainer::NarrowParameters(const LaneGraphs& graphs) const {
  const v1::JobPlan& plan = *options_.plan;
  std::vector<bool> narrow(plan.graph().parameters_size());
  for (const ChunkId id : NumbersBelow<ChunkId>(plan.chunks_size())) {
    if (plan.chunks(ToInt(id)).slot() != 0) continue;
    const int p = plan.chunks(ToInt(id)).parameter();
    const WireDType travels = ValuesFormat(plan, id).dtype;
    const auto is_computed_as = [&](v1::DType type) {
      return graphs.training.parameters(p).dtype() == type &&
             graphs.inference.parameters(p).dtype() == type;
    };
    narrow[p] = (travels == WireDType::kBf16 && is_computed_as(v1::DTYPE_BF16)) ||
                (travels == WireDType::kF16 && is_computed_as(v1::DTYPE_F16));
  }
  return narrow;
}

// Returns the number of labels in all held-out samples that count for the accuracy. Without labels
// every sample counts once.
double Trainer::CountEvaluationLabels() const {
  const v1::Graph& graph = options_.plan->graph();
  const std::vector<InputUse> uses = UsesOfInputs(graph);
  const auto samples = static_cast<double>(dataset_->evaluation_samples());
  for (int i = 0; i < graph.inputs_size(); ++i) {
    if (!uses[i].is_label) continue;
    if (uses[i].ignore_index) return static_cast<double>(counted_evaluation_targets_[i]);
    const int64_t labels = RowBytes(graph.inputs(i)) / static_cast<int64_t>(sizeof(int32_t));
    return samples * static_cast<double>(labels);
  }
  return samples;
}

v1::DatasetFacts Trainer::dataset() const {
  return FactsOf(*dataset_, options_.plan->spec().data(), options_.plan->graph());
}

// The sums over devices depend on how many there are and on how they are added.
std::string Trainer::device_kind() const {
  std::vector<std::string> kinds;
  for (const auto& lane : lanes_) kinds.push_back(lane->device().exact_kind());
  const bool are_alike = std::ranges::count(kinds, kinds[0]) == std::ssize(kinds);
  const int ranks = GridOf(options_).ranks();
  return absl::StrCat(kinds.size(), kinds.size() == 1 ? " device, " : " devices, ",
                      are_alike ? kinds[0] : absl::StrJoin(kinds, " + "),
                      ranks > 1 ? absl::StrCat(", tensor parallel ", ranks) : "",
                      gpus_ ? absl::StrCat(", NCCL ", NcclGroup::LibraryVersion()) : "");
}

absl::Status Trainer::Start(int64_t total_steps, std::vector<std::string> addresses) {
  const v1::JobPlan& plan = *options_.plan;
  total_steps_ = total_steps;
  sent_before_ = static_cast<int64_t>(options_.metrics->exchange.push_bytes.Value());
  received_before_ = static_cast<int64_t>(options_.metrics->exchange.params_bytes.Value());
  substituted_before_ = dataset_->substituted();
  ASSIGN_OR_RETURN(SampleOrder order, SampleOrder::Create(plan.spec().data(), dataset()));
  // The pipeline reads the first batches while the exchange connects.
  ASSIGN_OR_RETURN(pipeline_,
                   InputPipeline::Create({
                       .dataset = dataset_.get(),
                       .graph = &plan.graph(),
                       .device = &DeviceOfRows(),
                       .order = std::move(order),
                       .first_position = plan.workers(ToInt(options_.rank)).first_position(),
                       .samples = plan.workers(ToInt(options_.rank)).samples(),
                       .first_step = plan.first_step(),
                       .left_out = {plan.left_out_batches().begin(), plan.left_out_batches().end()},
                       .batches = batches_,
                       .threads = ReaderThreads(),
                       .nice = DeviceOfRows().is_cpu() ? NiceBesideCpu(*dataset_) : 0,
                       .cancelled = &cancelled_,
                       .trace = options_.tuning.trace,
                       .track = kStepTrack,
                   }));
  RETURN_IF_ERROR(exchange_->Connect(total_steps, std::move(addresses)));
  if (!plan.evaluate_first() || !EvaluationIsDue(step_)) return absl::OkStatus();
  const absl::Status awaited = exchange_->AwaitVersion(step_);
  // The other workers evaluate this version.
  if (absl::IsAborted(awaited) && exchange_->overtaken()) {
    v1::EvaluationRecord nothing;
    nothing.set_step(step_);
    return options_.log->Append(std::move(nothing));
  }
  // The job pauses, so the generation ends here.
  if (absl::IsAborted(awaited)) return absl::OkStatus();
  RETURN_IF_ERROR(awaited);
  return Evaluate(step_);
}

SampleRange Trainer::HeldOut() const {
  return GridOf(options_).HeldOut(dataset_->evaluation_samples());
}

// A CPU device uses all cores itself, so one thread copies samples. Beside GPUs the cores are idle,
// and several threads copy for all GPUs. Slow data get a thread for each core in both cases.
int Trainer::ReaderThreads() const {
  if (dataset_->is_slow()) return UsableCpus();
  return DeviceOfRows().is_cpu() ? 1 : std::min(options_.threads_per_device, kReaderThreadsMax);
}

// Chooses the number of batches that are read ahead.
absl::Status Trainer::ShareInputMemory() {
  const v1::JobPlan& plan = *options_.plan;
  const int64_t samples = plan.workers(ToInt(options_.rank)).samples();
  InputNeed need{.batch_bytes = BytesOfRows(samples, RowBytes(*dataset_, plan.graph()))};
  for (const auto& lane : lanes_) need.evaluation_bytes += lane->evaluation_bytes();
  ASSIGN_OR_RETURN(batches_, BatchesWithin(InputMemoryOf(plan.spec().data()), need,
                                           BatchesAhead(*dataset_, samples)));
  return absl::OkStatus();
}

// Returns a GPU if there is one: GPUs read its page-locked host memory fast, and CPUs can read any
// memory.
Device& Trainer::DeviceOfRows() const {
  const auto gpu = std::ranges::find_if(
      lanes_, [](const std::unique_ptr<DeviceLane>& lane) { return !lane->device().is_cpu(); });
  return (gpu == lanes_.end() ? lanes_[0] : *gpu)->device();
}

// Allows at least two chunks in flight, so that one can be sent while the acknowledgment of the
// other is under way.
ExchangeTuning Trainer::TuningOfJob() const {
  ExchangeTuning tuning = options_.tuning;
  tuning.inflight_bytes_max =
      std::max(tuning.inflight_bytes_max, 2 * options_.plan->spec().chunk_bytes());
  return tuning;
}

absl::Status Trainer::MakeRing() {
  ASSIGN_OR_RETURN(
      exchange_,
      RingExchange::Create({.plan = options_.plan,
                            .rank = options_.rank,
                            .transport = options_.transport,
                            .shard = options_.shard,
                            .parameters = parameters_->tensors(),
                            .gradients = lanes_[0]->gradients().tensors(),
                            .memory = {parameters_->memory(), lanes_[0]->gradients().memory()},
                            .tuning = TuningOfJob(),
                            .metrics = &options_.metrics->exchange}));
  return absl::OkStatus();
}

// Skips the batches of steps that this worker missed.
absl::StatusOr<InputBatch> Trainer::NextBatch() {
  absl::StatusOr<InputBatch> batch = pipeline_->Next();
  while (batch.ok() && batch->step < step_) batch = pipeline_->Next();
  if (!batch.ok()) {
    failed_step_ = step_.load();
    return batch;
  }
  CHECK_EQ(batch->step, step_);
  return batch;
}

absl::Status Trainer::Step() {
  CHECK(!done());
  Trace* const trace = options_.tuning.trace;
  if (trace != nullptr) trace->StepBegins(step_);
  const TraceSpan span(trace, kStepTrack, "step", {{{"step", step_}}});
  const absl::Duration begin = SteadyNow();
  ASSIGN_OR_RETURN(const InputBatch batch, [&] {
    const TraceSpan waiting(trace, kStepTrack, "wait for data", {{{"step", step_}}});
    return NextBatch();
  }());
  const absl::Duration have_data = SteadyNow();

  absl::Duration wait;
  // CPU devices meet after each leaf, so no device may stop alone: all parameters must be here.
  if (leaf_sums_ != nullptr && lanes_.size() > 1 && gpus_ == nullptr) {
    RETURN_IF_ERROR(exchange_->AwaitVersion(step_));
    wait = SteadyNow() - have_data;
  }
  std::vector<DeviceLane::StepResult> results(lanes_.size());
  const absl::Status run = [&] {
    const TraceSpan computing(trace, kStepTrack, "compute", {{{"step", step_}}});
    return team_->Run([&](int i) {
      auto result = lanes_[i]->Step(batch, *pipeline_);
      if (result.ok()) {
        results[i] = *result;
      } else {
        StopDevices(result.status());
      }
      return result.status();
    });
  }();
  if (absl::IsAborted(run) && exchange_->overtaken()) {
    if (lanes_.size() > 1) RETURN_IF_ERROR(RenewReduction());
    return CatchUp();
  }
  RETURN_IF_ERROR(run);
  const absl::Duration end = SteadyNow();

  // Forward waited for version `step` of every parameter, so the previous step is finished.
  RETURN_IF_ERROR(FinishStep());

  const DeviceGrid grid = GridOf(options_);
  double loss_share = 0;
  absl::Duration tensor_parallel;
  for (int i = 0; i < std::ssize(lanes_); ++i) {
    if (grid.rank_of(i).rank == 0) loss_share += results[i].loss_share;
    wait = std::max(wait, results[i].wait);
    tensor_parallel += results[i].tensor_parallel / std::ssize(lanes_);
  }
  pending_.emplace();
  pending_->set_step(batch.step);
  pending_->set_loss_share(loss_share);
  pending_->set_learning_rate(
      LearningRate(options_.plan->spec().training(), batch.step, total_steps_));
  SetTime(absl::Now(), *pending_->mutable_time());
  pending_->set_step_seconds(absl::ToDoubleSeconds(end - begin));
  pending_->set_wait_seconds(absl::ToDoubleSeconds(wait));
  pending_->set_loss_scale(results[0].loss_scale);
  ShowStep(*pending_);
  Observe(options_.metrics->data_duration, have_data - begin);
  Observe(options_.metrics->compute_duration, end - have_data - wait);
  AddTimes({.step = end - begin,
            .data = have_data - begin,
            .wait = wait,
            .tensor_parallel = tensor_parallel,
            .forward = results[0].forward});
  CountInput();
  ++step_;
  if (StopsAt(loss_share)) {
    // Waits for the answers: they say whose gradient was not finite.
    exchange_->AwaitVersion(batch.step + 1).IgnoreError();
    return NotFinite(batch.step, absl::StrCat("the loss of step ", batch.step, " is ", loss_share));
  }
  return AfterStep(batch.step + 1);
}

// Stops the other devices after one failed, because they may wait for its gradients, or for the
// values that result from them. After an interrupted wait (ABORTED) they only stop to meet it in
// the middle of the step: the wait ends for all devices before any of them contributes, so all have
// the same buckets.
void Trainer::StopDevices(const absl::Status& why) {
  AbortGroups(why);
  if (absl::IsAborted(why)) return;
  if (!exchange_->failed()) failed_step_ = step_.load();
  reduction_->Abort(why);
  exchange_->Fail(why);
}

// Ends the operations in which devices meet in the middle of a run.
void Trainer::AbortGroups(const absl::Status& why) {
  for (const auto& group : norms_) group->Abort(why);
  for (const auto& lane : lanes_) lane->AbortRanks(why);
  ranks_aborted_ = true;
}

void Trainer::AddTimes(const StepTimes& times) {
  const double step = absl::ToDoubleSeconds(times.step);
  const double data = absl::ToDoubleSeconds(times.data);
  const double wait = absl::ToDoubleSeconds(times.wait);
  const double compute = std::max(0.0, step - data - wait);
  const auto bytes = [](const prometheus::Counter& counter) {
    return static_cast<int64_t>(counter.Value());
  };
  absl::MutexLock lock(&timing_mu_);
  timing_.set_steps(timing_.steps() + 1);
  timing_.set_samples(timing_.samples() + options_.plan->workers(ToInt(options_.rank)).samples());
  timing_.set_step_seconds(timing_.step_seconds() + step);
  timing_.set_data_seconds(timing_.data_seconds() + data);
  timing_.set_compute_seconds(timing_.compute_seconds() + compute);
  timing_.set_wait_seconds(timing_.wait_seconds() + wait);
  timing_.set_tensor_parallel_seconds(timing_.tensor_parallel_seconds() +
                                      absl::ToDoubleSeconds(times.tensor_parallel));
  if (times.forward > absl::ZeroDuration()) {
    const double forward = std::min(compute, absl::ToDoubleSeconds(times.forward));
    timing_.set_forward_seconds(timing_.forward_seconds() + forward);
    timing_.set_backward_seconds(timing_.backward_seconds() + compute - forward);
  }
  timing_.set_sent_bytes(bytes(options_.metrics->exchange.push_bytes) - sent_before_);
  timing_.set_received_bytes(bytes(options_.metrics->exchange.params_bytes) - received_before_);
}

// Brings the costs of reading up to date. The counters get the difference to the last call.
void Trainer::CountInput() {
  v1::InputTiming input = pipeline_->timing();
  input.set_substituted(dataset_->substituted() - substituted_before_);
  absl::MutexLock lock(&timing_mu_);
  options_.metrics->CountInput(timing_.input(), input);
  *timing_.mutable_input() = std::move(input);
}

v1::StepTiming Trainer::timing() const {
  absl::MutexLock lock(&timing_mu_);
  return timing_;
}

// Finishes the step at once if an evaluation or the end of the job depends on it.
absl::Status Trainer::AfterStep(int64_t version) {
  if (version < total_steps_ && !EvaluationIsDue(version)) return absl::OkStatus();
  const absl::Status awaited = exchange_->AwaitVersion(version);
  if (absl::IsAborted(awaited) && exchange_->overtaken()) return CatchUp();
  RETURN_IF_ERROR(awaited);
  return FinishStep();
}

void Trainer::ShowStep(const v1::StepRecord& record) {
  const v1::JobPlan& plan = *options_.plan;
  const auto samples = static_cast<double>(plan.workers(ToInt(options_.rank)).samples());
  WorkerMetrics& metrics = *options_.metrics;
  const double loss_share = record.loss_share();
  if (!std::isfinite(loss_share)) {
    metrics.nonfinite_losses.Increment();
    if (!std::exchange(loss_was_nonfinite_, true)) WarnOfLoss(record);
  }
  metrics.loss.Set(loss_share * static_cast<double>(plan.spec().data().batch_size()) / samples);
  metrics.steps.Increment();
  metrics.samples.Increment(samples);
  metrics.flops.Increment(step_flops_);
  metrics.step_duration.Observe(record.step_seconds());
  metrics.wait_duration.Observe(record.wait_seconds());
}

// Warns about a loss that does not stop the job.
void Trainer::WarnOfLoss(const v1::StepRecord& record) const {
  if (StopsAt(record.loss_share())) return;  // the error that stops the job says why
  const v1::JobPlan& plan = *options_.plan;
  const std::string input = NameNonFiniteInputOf(record.step());
  // A judged step is skipped. The coordinator reports it if that continues.
  if (input.empty() && StepsAreJudged(plan.spec().training())) return;
  LOG(WARNING) << plan.job() << ": the loss of step " << record.step() << " is "
               << record.loss_share() << (input.empty() ? "" : ": ") << input
               << "; later ones are not logged. "
               << (input.empty() ? "A lower learning rate may help." : "Correct that row.");
}

absl::Status Trainer::Drain() {
  if (pending_) RETURN_IF_ERROR(reduction_->AwaitAnnounced(LastRoundOf(pending_->step())));
  RETURN_IF_ERROR(exchange_->AwaitAnswers());
  return exchange_->overtaken() ? CatchUp() : FinishStep();
}

absl::Status Trainer::FinishStep() {
  if (!pending_) return absl::OkStatus();
  const int64_t version = pending_->step() + 1;
  CHECK_GE(exchange_->version(), version);
  const double norm = exchange_->GradientNorm(version);
  // With backup workers, the answers to a late worker do not contain the norm.
  if (options_.plan->spec().sync().backup_workers() == 0 && StopsAt(norm)) {
    return NotFinite(version - 1,
                     absl::StrCat("the norm of the gradient of step ", version - 1, " is ", norm));
  }
  RETURN_IF_ERROR(RecordAnswered(norm));
  if (Trace* trace = options_.tuning.trace) trace->StepEnds(version - 1);
  if (EvaluationIsDue(version)) RETURN_IF_ERROR(Evaluate(version));
  next_step_.store(version, std::memory_order_release);
  return absl::OkStatus();
}

bool Trainer::StopsAt(double loss_or_norm) const {
  const v1::JobSpec& spec = options_.plan->spec();
  return !std::isfinite(loss_or_norm) && spec.on_non_finite() != v1::NON_FINITE_IGNORE &&
         !StepsAreJudged(spec.training());
}

// Returns the error for a loss or gradient of `step` that is not finite. With rollback the step
// runs again, so its record is dropped.
absl::Status Trainer::NotFinite(int64_t step, const std::string& what) {
  failed_step_ = step;
  if (options_.plan->spec().on_non_finite() == v1::NON_FINITE_ROLLBACK) pending_.reset();
  if (const std::string input = NameNonFiniteInputOf(step); !input.empty()) {
    return WithReason(absl::OutOfRangeError(absl::StrCat(what, ": ", input)), "DATA_NOT_FINITE");
  }
  return WithReason(absl::OutOfRangeError(absl::StrCat(
                        what, NameNonFiniteTensor(*options_.plan, *exchange_, step + 1,
                                                  parameters_->tensors(), narrow_parameters_))),
                    "LOSS_NOT_FINITE");
}

// Names an input of the step that is not finite, or returns "". Reads the whole batch, so that
// every worker names the same row, even one of another worker's share.
std::string Trainer::NameNonFiniteInputOf(int64_t step) const {
  const v1::JobPlan& plan = *options_.plan;
  const v1::DataSpec& data = plan.spec().data();
  const std::vector<SampleRef> batch =
      pipeline_->order().SamplesOfStep(BatchOfStep(step, plan.left_out_batches()),
                                       /*first_position=*/0, data.batch_size());
  return NameNonFiniteInput(*dataset_, data, plan.graph(), batch);
}

absl::Status Trainer::RecordAnswered(double gradient_norm) {
  pending_->set_skipped(StepsAreJudged(options_.plan->spec().training()) &&
                        !std::isfinite(gradient_norm));
  return RecordStep(gradient_norm);
}

absl::Status Trainer::RecordStep(double gradient_norm) {
  pending_->set_gradient_norm(gradient_norm);
  options_.metrics->loss_scale.Set(pending_->loss_scale());
  if (pending_->skipped()) options_.metrics->skipped_steps.Increment();
  options_.metrics->gradient_norm.Set(gradient_norm);
  options_.metrics->learning_rate.Set(pending_->learning_rate());
  return options_.log->Append(*std::exchange(pending_, std::nullopt));
}

// Continues at the version of the other workers. The devices may still reduce the last gradients.
// The exchange requires that all of them are pushed first.
absl::Status Trainer::CatchUp() {
  if (pending_) RETURN_IF_ERROR(reduction_->AwaitAnnounced(LastRoundOf(pending_->step())));
  ASSIGN_OR_RETURN(const int64_t version, exchange_->CatchUp());
  // The first version that this worker will not have evaluated.
  int64_t passed = pending_ ? pending_->step() + 1 : step_ + 1;
  if (pending_) {
    // The shards do not send the gradient's norm to a late worker.
    RETURN_IF_ERROR(RecordStep(std::numeric_limits<double>::quiet_NaN()));
  }
  for (int64_t missed = step_; missed < version; ++missed) {
    v1::StepRecord record;
    record.set_step(missed);
    record.set_missed(true);
    record.set_learning_rate(LearningRate(options_.plan->spec().training(), missed, total_steps_));
    SetTime(absl::Now(), *record.mutable_time());
    RETURN_IF_ERROR(options_.log->Append(std::move(record)));
    options_.metrics->missed_steps.Increment();
  }
  for (; passed < version; ++passed) {
    if (!EvaluationIsDue(passed)) continue;
    v1::EvaluationRecord nothing;
    nothing.set_step(passed);
    RETURN_IF_ERROR(options_.log->Append(std::move(nothing)));
  }
  step_ = version;
  if (Trace* trace = options_.tuning.trace) trace->StepEnds(version - 1);
  if (EvaluationIsDue(version)) RETURN_IF_ERROR(Evaluate(version));
  next_step_.store(version, std::memory_order_release);
  return absl::OkStatus();
}

bool Trainer::EvaluationIsDue(int64_t version) const {
  const int64_t every = options_.plan->spec().training().evaluate_every_steps();
  return dataset_->evaluation_samples() > 0 &&
         (version == total_steps_ || (every > 0 && version % every == 0));
}

absl::Status Trainer::Evaluate(int64_t version) {
  const TraceSpan span(options_.tuning.trace, kStepTrack, "evaluate", {{{"step", version}}});
  const absl::Duration begin = SteadyNow();
  const DeviceGrid grid = GridOf(options_);
  // A worker that was overtaken in a step it left evaluates with new groups.
  if (ranks_aborted_.exchange(false) && gpus_ == nullptr) RETURN_IF_ERROR(JoinRanks());
  std::vector<DeviceLane::EvaluationSums> sums(lanes_.size());
  RETURN_IF_ERROR(team_->Run([&](int i) {
    auto evaluated =
        lanes_[i]->Evaluate(counted_evaluation_targets_, pipeline_->pool(), cancelled_);
    if (!evaluated.ok()) {
      AbortGroups(evaluated.status());
    } else if (grid.rank_of(i).rank == 0) {
      sums[i] = *evaluated;
    }
    return evaluated.status();
  }));
  v1::EvaluationRecord record;
  record.set_step(version);
  record.set_has_accuracy(!options_.plan->graph().correct().empty());
  // A lane returns its share of the mean. Multiplied by the number of all samples, it becomes a
  // sum. The sums of all ranks, divided by the samples of all ranks, give the mean over the targets
  // that count.
  const auto all = static_cast<double>(dataset_->evaluation_samples());
  for (int i = 0; i < std::ssize(lanes_); ++i) {
    record.set_loss_sum(record.loss_sum() + sums[i].loss_share * all);
    record.set_correct(record.correct() + sums[i].correct * all / evaluation_labels_);
    record.set_samples(record.samples() + sums[i].samples);
  }
  if (!std::isfinite(record.loss_sum()) && !std::exchange(evaluation_was_nonfinite_, true)) {
    WarnOfEvaluation(version);
  }
  SetTime(absl::Now(), *record.mutable_time());
  Observe(options_.metrics->evaluate_duration, SteadyNow() - begin);
  CountInput();
  return options_.log->Append(std::move(record));
}

void Trainer::WarnOfEvaluation(int64_t version) const {
  const v1::JobPlan& plan = *options_.plan;
  const SampleRange held_out = HeldOut();
  const std::string input = NameNonFiniteHeldOut(*dataset_, plan.spec().data(), plan.graph(),
                                                 held_out.first, held_out.count);
  if (input.empty()) return;
  LOG(WARNING) << plan.job() << ": the loss of the evaluation after step " << version
               << " is not finite: " << input << "; later ones are not logged. Correct that row.";
}

void Trainer::Halt(absl::Status why) {
  cancelled_ = true;
  exchange_->Fail(std::move(why));
}

absl::Status Trainer::GiveUp() {
  if (!pending_) return absl::OkStatus();
  const int64_t version = pending_->step() + 1;
  if (exchange_->version() >= version) return RecordAnswered(exchange_->GradientNorm(version));
  return RecordStep(std::numeric_limits<double>::quiet_NaN());
}

void Trainer::Cancel(absl::Status why) {
  cancelled_ = true;
  options_.log->Close();
  exchange_->Fail(std::move(why));
}

}  // namespace muster
