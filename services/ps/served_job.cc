#include "services/ps/served_job.h"

#include <glog/logging.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/limits/limits.h"
#include "lib/log/log_scope.h"
#include "lib/plan/parameter_table.h"
#include "lib/shard/chunks/plan_credentials.h"
#include "lib/shard/core/plan_check.h"
#include "lib/shard/replication/shard_replica.h"
#include "lib/status/status.h"
#include "lib/status/utf8.h"

namespace muster {
namespace {

// How long a new job waits for memory that the last transfers of a released job still use. After
// that it is refused.
constexpr absl::Duration kMemoryPatience = absl::Seconds(65);
static_assert(kMemoryPatience > limits::kReleaseWaitMax);
// How long a new job waits for memory of a job that is not released here yet. The coordinator
// counts that memory as free once it has sent the release, and it repeats the release within
// Outbox::kResend.
constexpr absl::Duration kReleaseComes = absl::Seconds(5);

// The number of shards that are read from a checkpoint at a time. Other ps read too, and one disk
// serves all of them.
constexpr size_t kReadersMax = 4;

}  // namespace

ServedJob::ServedJob(std::shared_ptr<const v1::JobPlan> plan, const Environment* environment,
                     HeldShards held, std::shared_ptr<Trace> trace)
    : plan_(std::move(plan)),
      environment_(*environment),
      trace_(std::move(trace)),
      found_(FindShards()),
      snapshots_(WriterOptions(CountOwn())),
      carried_(std::move(held)),
      shards_missing_(static_cast<int>(shards_.size())),
      thread_([this](std::stop_token stop) { Run(stop); }) {}

ServedJob::~ServedJob() {
  Release();
  thread_.join();
}

absl::Status ServedJob::FindShards() {
  RETURN_IF_ERROR(CheckPlan(*plan_));
  for (const ShardIndex number : NumbersBelow<ShardIndex>(plan_->shards_size())) {
    const v1::PlanShard& shard = plan_->shards(ToInt(number));
    if (shard.member() == environment_.member) {
      RETURN_IF_ERROR(AddLocal(number, shard.thread(), /*is_replica=*/false));
    } else if (shard.backup().member() == environment_.member) {
      RETURN_IF_ERROR(AddLocal(number, shard.backup().thread(), /*is_replica=*/true));
    }
  }
  if (!shards_.empty()) return absl::OkStatus();
  return WithReason(absl::InvalidArgumentError(
                        absl::StrCat(plan_->job(), ": no shard is on ", environment_.member)),
                    "BAD_PLAN");
}

absl::Status ServedJob::AddLocal(ShardIndex number, int thread, bool is_replica) {
  if (thread < 0 || thread >= std::ssize(environment_.threads)) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat(
                          plan_->job(), ", ", is_replica ? "replica of shard " : "shard ",
                          ToInt(number), ": ", environment_.member, " has no thread ", thread)),
                      "BAD_PLAN");
  }
  auto local = absl::WrapUnique(new LocalShard{
      .number = number, .thread = environment_.threads[thread], .is_replica = is_replica});
  if (is_replica) {
    local->plan = std::make_shared<const v1::JobPlan>(PlanOfReplica(*plan_, number));
  } else if (SessionOf(*plan_, number) != plan_->job_number()) {
    local->plan = std::make_shared<const v1::JobPlan>(PlanOfShard(*plan_, number));
  } else {
    local->plan = plan_;
  }
  local->progress.lowest_version = plan_->first_step();
  trace_->NameTrack(ToInt(number), absl::StrCat(is_replica ? "replica of shard " : "shard ",
                                                ToInt(number), " (thread ", thread, ")"));
  shards_.push_back(std::move(local));
  return absl::OkStatus();
}

// Returns whether the shard's values survive from the last generation. There they may have belonged
// to the shard's replica.
bool ServedJob::IsCarried(const LocalShard& shard) const {
  if (plan_->carries() == 0) return false;
  return !shard.is_replica || plan_->shards(ToInt(shard.number)).backup().carries();
}

// ---------------------------------------------------------------- the job's thread

void ServedJob::Run(const std::stop_token& stop) {
  const LogScope scope({.job = plan_->job(), .generation = plan_->generation()});
  const absl::Status prepared = found_.ok() ? Prepare(stop) : found_;
  if (!prepared.ok() && !stop.stop_requested()) Fail(prepared);
  bool halts = false;
  {
    absl::MutexLock lock(&mu_);
    // Halt() and Release() return at once; this thread does the waiting.
    auto over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return released_ || TakesHalt(); };
    mu_.Await(absl::Condition(&over));
    halts = !released_;
  }
  if (halts) HaltShards();
  {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&released_));
  }
  if (!halts) snapshots_.Join();
  if (SnapshotWriter* const writer = held_snapshots(); writer != nullptr) writer->Join();
  // Released again, for shards that were installed after Release() had posted its own releases.
  for (const auto& shard : shards_) {
    shard->thread->Release(shard->plan->job_number(), plan_->generation());
  }
  carried_.clear();
  {
    absl::MutexLock lock(&mu_);
    AwaitShardsGone();
    for (const auto& shard : shards_) {
      shard->held.reset();
      shard->reservation.reset();
      shard->gradients.reset();
    }
  }
  gone_ = true;
}

// Returns whether the job can be halted now. A shard that is on its way to its thread must arrive
// first.
bool ServedJob::TakesHalt() const {
  return halting_ &&
         std::ranges::none_of(shards_, [](const auto& shard) { return shard->awaited; });
}

// Halts all shards here. The next generation overwrites the copies that snapshots read, so all
// writes must have ended before MEMBER_HALTED is reported.
void ServedJob::HaltShards() {
  for (const auto& shard : shards_) {
    shard->thread->Halt(shard->plan->job_number(), plan_->generation());
  }
  snapshots_.Close();
  snapshots_.Join();
  {
    absl::MutexLock lock(&mu_);
    AwaitShardsGone();
    if (released_) return;
    for (const auto& shard : shards_) {
      if (shard->held != nullptr) shard->held->DropGradients();
      shard->gradients.reset();
    }
    state_ = v1::MEMBER_HALTED;
    const ParameterShard::HeldVersions held = VersionsHeld();
    LOG(INFO) << plan_->job() << ", generation " << plan_->generation() << ": halted with versions "
              << held.oldest << " to " << held.newest;
  }
  environment_.report_soon();
}

// Returns the versions that all halted shards here hold. The range is empty if a shard was never
// created.
ParameterShard::HeldVersions ServedJob::VersionsHeld() const {
  ParameterShard::HeldVersions held;
  for (const auto& shard : shards_) {
    if (shard->is_replica) continue;
    if (shard->held == nullptr) return {.oldest = 1, .newest = 0};
    const ParameterShard::HeldVersions own = shard->held->held_versions();
    held.oldest = std::max(held.oldest, own.oldest);
    held.newest = std::min(held.newest, own.newest);
  }
  return held;
}

// Waits until the shards are gone. Their memory cannot be freed while a transfer uses it, so a long
// wait is logged with the shards that cause it.
void ServedJob::AwaitShardsGone() {
  const auto is_alive = [](const auto& shard) { return shard->alive; };
  auto none_alive = [&] { return std::ranges::none_of(shards_, is_alive); };
  absl::Duration waited;
  while (!AwaitFor(&mu_, absl::Condition(&none_alive), 2 * limits::kReleaseWaitMax)) {
    waited += 2 * limits::kReleaseWaitMax;
    std::vector<int> alive;
    for (const auto& shard : shards_) {
      if (shard->alive) alive.push_back(ToInt(shard->number));
    }
    LOG(ERROR) << plan_->job() << ", generation " << plan_->generation() << ": should have ended "
               << absl::FormatDuration(waited) << " ago, but a transfer still uses shards "
               << absl::StrJoin(alive, ", ")
               << "; their memory is freed when the processes that hold it end";
  }
}

absl::Status ServedJob::Prepare(const std::stop_token& stop) {
  // Frees held shards that the plan has no use for before more memory is reserved.
  std::erase_if(carried_, [this](const HeldShard& held) {
    return std::ranges::none_of(shards_, [&](const auto& shard) {
      return shard->number == held.shard->shard() && IsCarried(*shard);
    });
  });
  RETURN_IF_ERROR(ReserveMemory(stop));
  return InstallShards(stop);
}

// Installs shards in parallel: one thread draws about 30 million initial values a second, or reads
// at the speed of one stream. If one shard fails, the others are abandoned.
absl::Status ServedJob::InstallShards(const std::stop_token& stop) {
  std::stop_source given_up;
  const std::stop_callback released(stop, [&] { given_up.request_stop(); });
  std::vector<absl::Status> results(shards_.size());
  std::atomic<size_t> next = 0;
  const auto install_some = [&] {
    for (size_t i = next++; i < shards_.size(); i = next++) {
      results[i] = Install(*shards_[i], given_up.get_token());
      if (!results[i].ok()) given_up.request_stop();
    }
  };
  const size_t side_by_side = std::min(
      shards_.size(), plan_->restore().empty() ? environment_.threads.size() : kReadersMax);
  {
    std::vector<std::jthread> others;
    for (size_t i = 1; i < side_by_side; ++i) {
      others.emplace_back([&, fields = LogScope::Current()] {
        const LogScope scope(fields);
        install_some();
      });
    }
    install_some();
  }
  absl::Status fault;
  // Prefers a real error to the CANCELLED of the shards that were abandoned because of it.
  for (const absl::Status& result : results) {
    if (fault.ok() || absl::IsCancelled(fault)) fault = result.ok() ? fault : result;
  }
  return fault;
}

absl::Status ServedJob::Install(LocalShard& shard, const std::stop_token& stop) {
  ASSIGN_OR_RETURN(auto made, MakeShard(shard, stop));
  // Marked before the post, because the thread may answer at once.
  {
    absl::MutexLock lock(&mu_);
    shard.awaited = true;
    shard.alive = true;
  }
  shard.thread->Install(std::move(made), this, &shard.progress);
  return absl::OkStatus();
}

// Carried shards keep their memory; only their gradients need new memory.
absl::Status ServedJob::ReserveMemory(const std::stop_token& stop) {
  const auto reserve = [&](int64_t bytes) {
    return environment_.budget->Reserve(bytes, kMemoryPatience, kReleaseComes, stop);
  };
  int64_t all_bytes = 0;
  for (const auto& shard : shards_) {
    const auto held = std::ranges::find_if(carried_, [&](const HeldShard& carried) {
      return carried.shard->shard() == shard->number;
    });
    const int64_t gradient_bytes = ParameterShard::GradientBytesNeeded(*shard->plan, shard->number);
    const int64_t bytes = ParameterShard::BytesNeeded(*shard->plan, shard->number) - gradient_bytes;
    all_bytes += bytes + gradient_bytes;
    std::shared_ptr<MemoryBudget::Reservation> reservation;
    if (held != carried_.end()) {
      reservation = held->reservation;
    } else if (!IsCarried(*shard)) {
      ASSIGN_OR_RETURN(reservation, reserve(bytes));
    }
    ASSIGN_OR_RETURN(auto gradients, reserve(gradient_bytes));
    absl::MutexLock lock(&mu_);
    shard->reservation = std::move(reservation);
    shard->gradients = std::move(gradients);
    // Release() has retired only the reservations that existed then.
    if (released_) RetireReservations();
  }
  bytes_ = all_bytes;
  return absl::OkStatus();
}

void ServedJob::RetireReservations() {
  for (const auto& shard : shards_) {
    if (shard->reservation != nullptr) shard->reservation->Retire();
    if (shard->gradients != nullptr) shard->gradients->Retire();
  }
}

std::unique_ptr<ParameterShard> ServedJob::TakeCarried(ShardIndex number) {
  absl::MutexLock lock(&mu_);
  const auto held = std::ranges::find_if(carried_, [&](const HeldShard& carried) {
    return carried.shard != nullptr && carried.shard->shard() == number;
  });
  return held == carried_.end() ? nullptr : std::move(held->shard);
}

// Continues a held shard, or creates one and fills it. A new replica is filled by its shard after
// the job has started.
absl::StatusOr<std::unique_ptr<ParameterShard>> ServedJob::MakeShard(const LocalShard& local,
                                                                     const std::stop_token& stop) {
  std::shared_ptr<MemoryBudget::Reservation> reservation, gradients;
  {
    absl::MutexLock lock(&mu_);
    reservation = local.reservation;
    gradients = local.gradients;
  }
  if (IsCarried(local)) {
    std::unique_ptr<ParameterShard> held = TakeCarried(local.number);
    if (held == nullptr) {
      return WithReason(
          absl::FailedPreconditionError(absl::StrCat(
              plan_->job(), ", shard ", ToInt(local.number), ": ", environment_.member,
              " holds nothing of generation ", plan_->carries(), ", which the plan carries on")),
          "SHARDS_NOT_HELD");
    }
    return ParameterShard::Continue(local.plan, std::move(held), std::move(gradients));
  }
  ASSIGN_OR_RETURN(auto shard,
                   ParameterShard::Create(local.plan, local.number, std::move(reservation),
                                          std::move(gradients)));
  if (local.is_replica) return shard;
  if (plan_->restore().empty()) {
    for (const LocalChunk chunk : shard->chunks()) {
      if (stop.stop_requested()) break;
      shard->Initialize(chunk);
      ++prepared_;
    }
  } else if (shard->chunk_count() > 0) {
    const absl::Duration begin = SteadyNow();
    RETURN_IF_ERROR(environment_.checkpoints->ReadShard(*shard, stop, [this](int64_t bytes) {
      prepared_ += bytes;
      environment_.metrics->restore_bytes.Increment(static_cast<double>(bytes));
    }));
    environment_.metrics->restore_duration.Observe(absl::ToDoubleSeconds(SteadyNow() - begin));
  }
  if (stop.stop_requested()) return absl::CancelledError("the job was released");
  return shard;
}

int64_t ServedJob::CountOwn() const {
  return std::ranges::count_if(shards_, [](const auto& shard) { return !shard->is_replica; });
}

SnapshotWriter::Options ServedJob::WriterOptions(int64_t shards) {
  return {.plan = plan_,
          .checkpoints = environment_.checkpoints,
          .shards = static_cast<int>(shards),
          .written =
              [this](const ShardSnapshot& snapshot, absl::Duration took) {
                environment_.metrics->snapshot_duration.Observe(absl::ToDoubleSeconds(took));
                const LocalShard& local = Local(snapshot.shard);
                local.thread->SnapshotWritten(local.plan->job_number(), plan_->generation(),
                                              snapshot.id, snapshot.step);
              },
          .report_soon = environment_.report_soon};
}

// ---------------------------------------------------------------- directives

void ServedJob::Start(int64_t total_steps) {
  {
    absl::MutexLock lock(&mu_);
    // the coordinator repeats the directive
    if (released_ || halting_ || state_ != v1::MEMBER_PREPARED) return;
    state_ = v1::MEMBER_RUNNING;
  }
  for (const auto& shard : shards_) {
    shard->thread->StartJob(shard->plan->job_number(), plan_->generation(), total_steps);
  }
  environment_.report_soon();
}

void ServedJob::TakeSnapshot(const v1::Snapshot& asked) {
  bool halted = false;
  {
    absl::MutexLock lock(&mu_);
    halted = state_ == v1::MEMBER_HALTED;
  }
  if (halted) return SaveHeld(asked);
  for (const auto& shard : shards_) {
    if (shard->is_replica) continue;
    shard->thread->TakeSnapshot(shard->plan->job_number(), plan_->generation(), asked.snapshot(),
                                asked.step());
  }
}

void ServedJob::Halt() {
  absl::MutexLock lock(&mu_);
  halting_ = true;
}

void ServedJob::SaveHeld(const v1::Snapshot& asked) {
  const uint64_t id = asked.snapshot();
  const int64_t step = asked.step();
  std::vector<std::pair<ShardIndex, std::shared_ptr<const ShardSnapshot>>> snapshots;
  {
    absl::MutexLock lock(&mu_);
    // A known or older id is a repeated request.
    if (released_ || id <= held_asked_) return;
    held_asked_ = id;
    if (held_snapshots_ == nullptr) {
      held_snapshots_ = std::make_unique<SnapshotWriter>(WriterOptions(std::ssize(shards_)));
    }
    for (const auto& shard : shards_) {
      const bool is_wanted =
          !shard->is_replica || std::ranges::count(asked.backups(), ToInt(shard->number)) > 0;
      if (!is_wanted) continue;
      snapshots.emplace_back(
          shard->number, shard->held == nullptr ? nullptr : shard->held->SnapshotOfHeld(id, step));
    }
  }
  SnapshotWriter& writer = *held_snapshots();
  for (auto& [shard, snapshot] : snapshots) {
    if (snapshot != nullptr) {
      writer.Taken(std::move(snapshot));
    } else {
      writer.Declined(shard, id, step, v1::SNAPSHOT_MISSED,
                      "the halted shard does not hold this version");
    }
  }
}

SnapshotWriter* ServedJob::held_snapshots() {
  absl::MutexLock lock(&mu_);
  return held_snapshots_.get();
}

bool ServedJob::EndSaving() {
  SnapshotWriter* const writer = held_snapshots();
  if (writer == nullptr) return true;
  writer->Close();
  return !writer->reading();
}

HeldShards ServedJob::TakeHeld() {
  absl::MutexLock lock(&mu_);
  if (state_ != v1::MEMBER_HALTED) return {};
  HeldShards held;
  for (const auto& shard : shards_) {
    if (shard->held == nullptr) continue;
    held.push_back({std::move(shard->held), std::move(shard->reservation)});
  }
  return held;
}

void ServedJob::Release() {
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(released_, true)) return;
    RetireReservations();
  }
  // Ends waits for memory and reads of a checkpoint.
  thread_.request_stop();
  snapshots_.Close();
  for (const auto& shard : shards_) {
    shard->thread->Release(shard->plan->job_number(), plan_->generation());
  }
}

v1::JobReport ServedJob::Report() {
  v1::JobReport report;
  report.set_job(plan_->job());
  report.set_generation(plan_->generation());
  report.set_next_step(LowestVersion());
  const std::vector<v1::SnapshotReport> snapshots = snapshots_.reports();
  report.mutable_snapshots()->Assign(snapshots.begin(), snapshots.end());
  absl::MutexLock lock(&mu_);
  report.set_state(state_);
  if (held_snapshots_ != nullptr) {
    for (v1::SnapshotReport& held : held_snapshots_->reports()) {
      *report.add_snapshots() = std::move(held);
    }
  }
  if (state_ == v1::MEMBER_PREPARING) report.set_prepare_progress(prepared_);
  if (state_ == v1::MEMBER_FAILED) *report.mutable_error() = error_;
  if (state_ == v1::MEMBER_HALTED) {
    const ParameterShard::HeldVersions held = VersionsHeld();
    report.set_oldest_version(held.oldest);
    report.set_next_step(held.newest);
    for (const auto& shard : shards_) {
      if (!shard->is_replica || shard->held == nullptr) continue;
      const ParameterShard::HeldVersions versions = shard->held->held_versions();
      if (versions.oldest > versions.newest) continue;
      v1::HeldBackup& replica = *report.add_backups();
      replica.set_shard(ToInt(shard->number));
      replica.set_oldest_version(versions.oldest);
      replica.set_newest_version(versions.newest);
    }
  }
  for (const std::string& member : lost_links_) report.add_lost_links(member);
  return report;
}

// ---------------------------------------------------------------- calls from the shards

void ServedJob::ShardInstalled(ShardIndex number, const absl::Status& status) {
  if (!status.ok()) {
    Fail(Annotate(status, absl::StrCat("shard ", ToInt(number))));
    absl::MutexLock lock(&mu_);
    LocalShard& shard = Local(number);
    shard.awaited = false;
    shard.alive = false;
    return;
  }
  {
    absl::MutexLock lock(&mu_);
    Local(number).awaited = false;
    if (--shards_missing_ > 0 || state_ != v1::MEMBER_PREPARING) return;
    state_ = v1::MEMBER_PREPARED;
  }
  environment_.report_soon();
}

void ServedJob::ShardFailed(ShardIndex shard, const absl::Status& status,
                            const std::string& culprit) {
  Fail(Annotate(status, absl::StrCat("shard ", ToInt(shard))), culprit);
}

void ServedJob::LinkLost(ShardIndex /*shard*/, const std::string& member) {
  {
    absl::MutexLock lock(&mu_);
    // Halting disconnects all peers, so links that break now show no fault.
    if (halting_ || released_ || !lost_links_.insert(member).second) return;
  }
  environment_.report_soon();
}

void ServedJob::ShardReleased(std::unique_ptr<ParameterShard> shard) {
  LocalShard& local = Local(shard->shard());
  {
    absl::MutexLock lock(&mu_);
    // A halted generation keeps its shards for the next one.
    if (halting_ && !released_) local.held = std::move(shard);
  }
  shard.reset();  // destroyed before it counts as gone
  absl::MutexLock lock(&mu_);
  local.alive = false;
}

void ServedJob::SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) {
  snapshots_.Taken(std::move(snapshot));
}

void ServedJob::SnapshotDeclined(ShardIndex shard, uint64_t id, int64_t step,
                                 v1::SnapshotOutcome outcome, const std::string& message) {
  snapshots_.Declined(shard, id, step, outcome, message);
}

// Reports that the job failed. Ignored if the job was halted or released: the generation has ended
// anyway.
void ServedJob::Fail(const absl::Status& status, const std::string& culprit) {
  const LogScope scope({.job = plan_->job(), .generation = plan_->generation()});
  {
    absl::MutexLock lock(&mu_);
    if (released_ || halting_) return;
    state_ = v1::MEMBER_FAILED;
    error_.set_code(static_cast<int32_t>(status.code()));
    error_.set_reason(ReasonOf(status));
    error_.set_message(Printable(status.message()));  // the coordinator adds the member
    error_.set_step(LowestVersion());
    error_.set_culprit(culprit == environment_.member ? "" : culprit);
  }
  LOG(ERROR) << plan_->job() << ", generation " << plan_->generation() << ": " << status;
  environment_.report_soon();
}

ServedJob::LocalShard& ServedJob::Local(ShardIndex shard) const {
  return **std::ranges::find_if(shards_,
                                [shard](const auto& local) { return local->number == shard; });
}

void ServedJob::ShowProgress() const {
  environment_.metrics->ShowVersion(plan_->job(), LowestVersion());
  environment_.metrics->ShowBytes(plan_->job(), bytes_);
  if (IsReplicated(*plan_)) environment_.metrics->ShowReplicaLag(plan_->job(), ReplicaLag());
  if (!StepsAreJudged(plan_->spec().training())) return;
  float loss_scale = 0;  // equal on every shard with chunks, except for one step
  int64_t skips_in_row = 0;
  for (const auto& shard : shards_) {
    loss_scale = std::max(loss_scale, shard->progress.loss_scale.load());
    skips_in_row = std::max(skips_in_row, shard->progress.skips_in_row.load());
  }
  environment_.metrics->ShowVerdict(plan_->job(), loss_scale, skips_in_row);
}

int64_t ServedJob::ReplicaLag() const {
  int64_t lag = 0;
  for (const auto& shard : shards_) {
    if (shard->is_replica || !HasReplica(*plan_, shard->number)) continue;
    const int64_t version = shard->progress.lowest_version.load(std::memory_order_relaxed);
    if (version == std::numeric_limits<int64_t>::max()) continue;
    lag = std::max(lag, version - shard->progress.replica_version.load(std::memory_order_relaxed));
  }
  return lag;
}

// Shards without gradients have no version.
int64_t ServedJob::LowestVersion() const {
  int64_t lowest = std::numeric_limits<int64_t>::max();
  for (const auto& shard : shards_) {
    if (shard->is_replica) continue;
    lowest = std::min(lowest, shard->progress.lowest_version.load(std::memory_order_relaxed));
  }
  return lowest == std::numeric_limits<int64_t>::max() ? plan_->first_step() : lowest;
}

}  // namespace muster
