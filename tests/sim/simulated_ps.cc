#include "tests/sim/simulated_ps.h"

#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "lib/limits/limits.h"
#include "lib/shard/chunks/plan_credentials.h"
#include "lib/shard/replication/shard_replica.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"
#include "services/coordinator/checkpoints/shard_restore.h"

namespace muster {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(200);

// Returns whether a checkpoint stream failed in a way that a retry can fix.
bool IsPassing(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) || absl::IsCancelled(status) ||
         absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status);
}

}  // namespace

// Serves one generation of the job, like services/ps/served_job.
class SimulatedPs::Service : public ShardListener {
 public:
  struct Held {
    std::unique_ptr<ParameterShard> shard;
    std::shared_ptr<MemoryBudget::Reservation> reservation;
  };

  Service(SimulatedPs* ps, const v1::JobPlan& plan, std::vector<Held> held)
      : ps_(*ps), plan_(std::make_shared<const v1::JobPlan>(plan)), carried_(std::move(held)) {
    for (const ShardIndex number : NumbersBelow<ShardIndex>(plan_->shards_size())) {
      const v1::PlanShard& shard = plan_->shards(ToInt(number));
      const bool is_replica = shard.backup().member() == ps_.name();
      if (shard.member() != ps_.name() && !is_replica) continue;
      Local& local = *shards_.emplace_back(std::make_unique<Local>());
      local.number = number;
      local.is_replica = is_replica;
      local.plan = std::make_shared<const v1::JobPlan>(is_replica ? PlanOfReplica(*plan_, number)
                                                                  : PlanOfShard(*plan_, number));
    }
    CHECK(!shards_.empty());
    ps_.Later(ps_.time().Between(absl::Milliseconds(1), absl::Milliseconds(50)),
              Guarded([this] { MakeShards(0); }));
  }

  const v1::JobPlan& plan() const { return *plan_; }
  bool gone() const {
    return released_ &&
           std::ranges::none_of(shards_, [](const auto& shard) { return shard->alive; });
  }

  void Start(int64_t total_steps) {
    if (released_ || halting_ || state_ != v1::MEMBER_PREPARED) return;
    state_ = v1::MEMBER_RUNNING;
    for (const auto& shard : shards_) {
      ps_.loop_->StartJob(shard->plan->job_number(), plan_->generation(), total_steps);
    }
    ps_.ReportSoon();
  }

  void TakeSnapshot(const v1::Snapshot& snapshot) {
    if (state_ == v1::MEMBER_HALTED) return SaveHeld(snapshot);
    for (const auto& shard : shards_) {
      if (shard->is_replica) continue;
      ps_.loop_->TakeSnapshot(shard->plan->job_number(), plan_->generation(), snapshot.snapshot(),
                              snapshot.step());
    }
  }

  void Halt() {
    if (std::exchange(halting_, true)) return;
    ++era_;
    for (const auto& shard : shards_) {
      ps_.loop_->Halt(shard->plan->job_number(), plan_->generation());
    }
    NoteHalted();
  }

  // Cancels the uploads of held shards. Returns false if any was in flight; the caller must then
  // ask again.
  bool EndSaving() {
    ++era_;
    return std::exchange(saving_, 0) == 0;
  }

  std::vector<Held> TakeHeld() {
    std::vector<Held> held;
    if (state_ != v1::MEMBER_HALTED) return held;
    for (const auto& shard : shards_) {
      if (shard->held == nullptr) continue;
      held.push_back({std::move(shard->held), std::move(shard->reservation)});
    }
    return held;
  }

  void Release() {
    if (std::exchange(released_, true)) return;
    ++era_;
    for (const auto& shard : shards_) {
      ps_.loop_->Release(shard->plan->job_number(), plan_->generation());
    }
  }

  v1::JobReport Report() const {
    v1::JobReport report;
    report.set_job(plan_->job());
    report.set_generation(plan_->generation());
    report.set_state(state_);
    report.set_prepare_progress(prepared_);
    int64_t lowest = std::numeric_limits<int64_t>::max();
    for (const auto& shard : shards_) {
      if (!shard->is_replica) lowest = std::min(lowest, shard->progress.lowest_version.load());
    }
    report.set_next_step(lowest == std::numeric_limits<int64_t>::max() ? plan_->first_step()
                                                                       : lowest);
    report.mutable_snapshots()->Assign(snapshots_.begin(), snapshots_.end());
    if (state_ == v1::MEMBER_FAILED) *report.mutable_error() = error_;
    if (state_ == v1::MEMBER_HALTED) AddHeld(report);
    for (const std::string& member : lost_links_) report.add_lost_links(member);
    return report;
  }

 private:
  struct Local {
    ShardIndex number{};
    bool is_replica = false;
    std::shared_ptr<const v1::JobPlan> plan;  // as the shard sees it
    bool alive = false;                       // on the loop
    ShardProgress progress;
    std::unique_ptr<ParameterShard> held;
    std::shared_ptr<MemoryBudget::Reservation> reservation;
  };
  // A snapshot that is being written into a checkpoint.
  using Snapshot = std::shared_ptr<const ShardSnapshot>;

  // Wraps `what` so that it does nothing after this generation ends. Each new era (halt, release,
  // end of saving) cancels the callbacks of the era before.
  std::function<void()> Guarded(std::function<void()> what) {
    return [this, exists = std::weak_ptr<int>(exists_), era = era_, what = std::move(what)] {
      if (!exists.expired() && era == era_) what();
    };
  }

  Local& LocalOf(ShardIndex number) {
    return **std::ranges::find_if(shards_,
                                  [&](const auto& shard) { return shard->number == number; });
  }

  // ---- preparing

  bool IsCarried(const Local& shard) const {
    if (plan_->carries() == 0) return false;
    return !shard.is_replica || plan_->shards(ToInt(shard.number)).backup().carries();
  }

  void MakeShards(size_t next) {
    if (next == shards_.size()) {
      state_ = v1::MEMBER_PREPARED;
      return ps_.ReportSoon();
    }
    Local& local = *shards_[next];
    auto made = Make(local);
    if (made.ok() && *made == nullptr) {  // the coordinator is away
      return ps_.Later(kRetry, Guarded([this, next] { MakeShards(next); }));
    }
    if (ReasonOf(made.status()) == "SHARDS_NOT_HELD") {
      ps_.world().Violated(absl::StrCat(
          ps_.name(), " is to continue a shard that it does not hold: ", made.status().ToString()));
    }
    if (!made.ok()) return Fail(made.status(), "");
    ++prepared_;
    local.alive = true;
    local.progress.lowest_version = plan_->first_step();
    ps_.loop_->Install(*std::move(made), this, &local.progress);
    ps_.Later(ps_.time().Between(absl::Microseconds(100), absl::Milliseconds(20)),
              Guarded([this, next] { MakeShards(next + 1); }));
  }

  absl::StatusOr<std::unique_ptr<ParameterShard>> Make(Local& local) {
    const int64_t gradient_bytes = ParameterShard::GradientBytesNeeded(*local.plan, local.number);
    ASSIGN_OR_RETURN(auto gradients, ps_.budget_.Reserve(gradient_bytes, absl::ZeroDuration()));
    if (IsCarried(local)) {
      const auto held = std::ranges::find_if(carried_, [&](const Held& carried) {
        return carried.shard != nullptr && carried.shard->shard() == local.number;
      });
      if (held == carried_.end()) {
        return WithReason(absl::FailedPreconditionError(
                              absl::StrCat("shard ", ToInt(local.number), " is not held")),
                          "SHARDS_NOT_HELD");
      }
      local.reservation = held->reservation;
      return ParameterShard::Continue(local.plan, std::move(held->shard), std::move(gradients));
    }
    const int64_t bytes = ParameterShard::BytesNeeded(*local.plan, local.number) - gradient_bytes;
    ASSIGN_OR_RETURN(local.reservation, ps_.budget_.Reserve(bytes, absl::ZeroDuration()));
    ASSIGN_OR_RETURN(auto shard, ParameterShard::Create(local.plan, local.number, local.reservation,
                                                        std::move(gradients)));
    if (local.is_replica) return shard;
    if (plan_->restore().empty()) {
      for (const LocalChunk chunk : shard->chunks()) shard->Initialize(chunk);
      return shard;
    }
    if (shard->chunk_count() == 0) return shard;
    absl::Status restored = absl::UnavailableError("no coordinator");
    ps_.world().AtCoordinator(
        [&](Coordinator& coordinator) { restored = Restore(coordinator, *shard); });
    if (IsPassing(restored)) return nullptr;
    RETURN_IF_ERROR(restored);
    return shard;
  }

  absl::Status Restore(Coordinator& coordinator, ParameterShard& shard) const {
    v1::ReadShardRequest request;
    request.set_job(plan_->job());
    request.set_generation(plan_->generation());
    request.set_shard(ToInt(shard.shard()));
    ASSIGN_OR_RETURN(const auto source, coordinator.checkpoints().FindRestore(request));
    ASSIGN_OR_RETURN(const auto reader,
                     ShardRestore::Open(source.plan, source.directory, request.shard()));
    shard.BeginRestore();
    while (true) {
      ASSIGN_OR_RETURN(const auto slice, reader->Next());
      if (!slice) return shard.FinishRestore();
      RETURN_IF_ERROR(shard.RestoreSlice(*slice));
    }
  }

  // ---- the end

  void NoteHalted() {
    if (!halting_ || released_ || state_ == v1::MEMBER_HALTED) return;
    if (std::ranges::any_of(shards_, [](const auto& shard) { return shard->alive; })) return;
    for (const auto& shard : shards_) {
      if (shard->held != nullptr) shard->held->DropGradients();
    }
    state_ = v1::MEMBER_HALTED;
    ps_.world().Halted(ps_.name(), *plan_, Report());
    ps_.ReportSoon();
  }

  void AddHeld(v1::JobReport& report) const {
    ParameterShard::HeldVersions held;
    for (const auto& shard : shards_) {
      if (shard->is_replica) {
        if (shard->held == nullptr) continue;
        const ParameterShard::HeldVersions versions = shard->held->held_versions();
        if (versions.oldest > versions.newest) continue;
        v1::HeldBackup& replica = *report.add_backups();
        replica.set_shard(ToInt(shard->number));
        replica.set_oldest_version(versions.oldest);
        replica.set_newest_version(versions.newest);
        continue;
      }
      if (shard->held == nullptr) {
        held = {.oldest = 1, .newest = 0};
        break;
      }
      const ParameterShard::HeldVersions own = shard->held->held_versions();
      held.oldest = std::max(held.oldest, own.oldest);
      held.newest = std::min(held.newest, own.newest);
    }
    report.set_oldest_version(held.oldest);
    report.set_next_step(held.newest);
  }

  void Fail(const absl::Status& status, const std::string& culprit) {
    if (released_ || halting_ || state_ == v1::MEMBER_FAILED) return;
    state_ = v1::MEMBER_FAILED;
    error_.set_code(static_cast<int32_t>(status.code()));
    error_.set_reason(ReasonOf(status));
    error_.set_message(std::string(status.message()));
    error_.set_culprit(culprit);
    ps_.ReportSoon();
  }

  // ---- ShardListener

  void ShardInstalled(ShardIndex, const absl::Status& status) override {
    CHECK(status.ok()) << status;
  }
  void ShardFailed(ShardIndex, const absl::Status& status, const std::string& culprit) override {
    Fail(status, culprit);
  }
  void LinkLost(ShardIndex, const std::string& member) override {
    if (!halting_ && !released_ && lost_links_.insert(member).second) ps_.ReportSoon();
  }
  void ShardReleased(std::unique_ptr<ParameterShard> shard) override {
    Local& local = LocalOf(shard->shard());
    local.alive = false;
    if (halting_ && !released_) local.held = std::move(shard);
    shard.reset();
    NoteHalted();
  }
  void SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) override {
    Note(*snapshot, v1::SNAPSHOT_TAKEN);
    WriteLater(std::move(snapshot), absl::Milliseconds(1));
  }
  void SnapshotDeclined(ShardIndex shard, uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                        const std::string& message) override {
    Note({.shard = shard, .id = id, .step = step}, outcome, message);
  }

  // ---- snapshots: models lib/shard/snapshot/snapshot_writer

  void SaveHeld(const v1::Snapshot& asked) {
    if (asked.snapshot() <= held_asked_) return;
    held_asked_ = asked.snapshot();
    for (const auto& shard : shards_) {
      const bool is_wanted =
          !shard->is_replica || std::ranges::count(asked.backups(), ToInt(shard->number)) > 0;
      if (!is_wanted) continue;
      Snapshot held;
      if (shard->held != nullptr) {
        held = shard->held->SnapshotOfHeld(asked.snapshot(), asked.step());
      }
      if (held == nullptr) {
        // A ps that holds replicas for the checkpoint may lack its own shards.
        if (shard->held != nullptr) {
          ps_.world().Violated(absl::StrCat("the coordinator saves shard ", ToInt(shard->number),
                                            " at step ", asked.step(), ", which ", ps_.name(),
                                            " does not hold"));
        }
        SnapshotDeclined(shard->number, asked.snapshot(), asked.step(), v1::SNAPSHOT_MISSED, "");
        continue;
      }
      ++saving_;
      SnapshotTaken(std::move(held));
    }
  }

  void Note(const ShardSnapshot& snapshot, v1::SnapshotOutcome outcome,
            const std::string& message = "") {
    const auto kind_of = [](uint64_t id, v1::SnapshotOutcome of) {
      return std::pair(id == 0, id == 0 && of == v1::SNAPSHOT_MISSED);
    };
    auto same = std::ranges::find_if(snapshots_, [&](const v1::SnapshotReport& report) {
      return ShardIndex(report.shard()) == snapshot.shard &&
             kind_of(report.snapshot(), report.outcome()) == kind_of(snapshot.id, outcome);
    });
    if (same != snapshots_.end() && same->snapshot() > snapshot.id) return;
    if (same == snapshots_.end()) same = snapshots_.emplace(snapshots_.end());
    same->set_shard(ToInt(snapshot.shard));
    same->set_snapshot(snapshot.id);
    same->set_step(snapshot.step);
    same->set_outcome(outcome);
    same->set_message(message);
    ps_.ReportSoon();
  }

  void Written(const ShardSnapshot& snapshot, const absl::Status& status) {
    Note(snapshot, status.ok() ? v1::SNAPSHOT_WRITTEN : v1::SNAPSHOT_FAILED,
         std::string(status.message()));
    if (saving_ > 0) --saving_;
    ps_.loop_->SnapshotWritten(LocalOf(snapshot.shard).plan->job_number(), plan_->generation(),
                               snapshot.id, snapshot.step);
    ps_.world().Stir();
  }

  void WriteLater(Snapshot snapshot, absl::Duration least) {
    ps_.Later(ps_.time().Between(least, least + absl::Milliseconds(100)),
              Guarded([this, snapshot = std::move(snapshot)] { Write(snapshot); }));
  }

  // Begins the stream and ends it some time later. The stream ends complete, or breaks off if this
  // process or the present era has ended by then.
  void Write(const Snapshot& snapshot) {
    if (snapshot->pieces.empty()) return Written(*snapshot, absl::OkStatus());
    v1::WriteShardHeader header;
    header.set_job(plan_->job());
    header.set_generation(plan_->generation());
    header.set_step(snapshot->step);
    header.set_shard(ToInt(snapshot->shard));
    header.set_snapshot(snapshot->id);
    *header.mutable_update_state() = snapshot->update_state;
    absl::Status begun, sent;
    std::shared_ptr<ShardUpload> upload;  // null: the checkpoint exists already
    const bool there = ps_.world().AtCoordinator([&](Coordinator& coordinator) {
      auto began = coordinator.checkpoints().BeginShard(header);
      begun = began.status();
      if (!began.ok() || !began->has_value()) return;
      upload = std::make_shared<ShardUpload>(**began);
      sent = Send(*snapshot, *upload);
    });
    if (!there || IsPassing(begun)) return WriteLater(snapshot, kRetry);
    if (!begun.ok() || upload == nullptr) return Written(*snapshot, begun);
    ps_.world().uploads().insert(upload);
    ps_.time().After(ps_.time().Between(absl::ZeroDuration(), absl::Milliseconds(200)),
                     [this, exists = std::weak_ptr<int>(exists_), era = era_, world = &ps_.world(),
                      snapshot, sent, stream = std::weak_ptr<ShardUpload>(upload)] {
                       const bool here = !exists.expired() && era == era_;
                       const auto upload = stream.lock();
                       if (upload == nullptr) {
                         if (here) WriteLater(snapshot, kRetry);
                         return;
                       }
                       absl::Status ended;
                       world->AtCoordinator([&](Coordinator& coordinator) {
                         ended = coordinator.checkpoints().EndShard(
                             *upload, here ? sent : absl::CancelledError("broke off"));
                       });
                       if (here && Ended(snapshot, stream, ended)) return;
                       world->uploads().erase(upload);
                     });
  }

  // Returns whether the stream stays open. The stream of a periodic snapshot (id 0) stays open
  // until the checkpoint is committed or has failed.
  bool Ended(const Snapshot& snapshot, const std::weak_ptr<ShardUpload>& stream,
             const absl::Status& ended) {
    if (ended.ok() && snapshot->id == 0) {
      AwaitCommit(snapshot, stream);
      return true;
    }
    if (IsPassing(ended)) {
      WriteLater(snapshot, kRetry);
    } else {
      Written(*snapshot, ended);
    }
    return false;
  }

  void AwaitCommit(const Snapshot& snapshot, const std::weak_ptr<ShardUpload>& stream) {
    const auto upload = stream.lock();
    if (upload == nullptr) return WriteLater(snapshot, kRetry);
    const auto outcome = upload->round()->AwaitOutcome(absl::ZeroDuration());
    if (!outcome) {
      return ps_.Later(absl::Milliseconds(50),
                       Guarded([this, snapshot, stream] { AwaitCommit(snapshot, stream); }));
    }
    ps_.world().uploads().erase(upload);
    if (IsPassing(*outcome)) return WriteLater(snapshot, kRetry);
    Written(*snapshot, *outcome);
  }

  absl::Status Send(const ShardSnapshot& snapshot, ShardUpload& upload) {
    for (const ShardSnapshot::Piece& piece : snapshot.pieces) {
      const auto bytes = std::as_bytes(std::span(piece.elements.data(), piece.elements.size()));
      if (piece.slot == 0) {
        const v1::PlanChunk& chunk = plan_->chunks(ToInt(piece.chunk));
        if (!ps_.world().trajectory().Has(chunk, snapshot.step, piece.elements)) {
          ps_.world().Violated(absl::StrCat("I5: ", ps_.name(), " snapshots parameter ",
                                            chunk.parameter(), " with other values than version ",
                                            snapshot.step, " has"));
        }
      }
      v1::ShardSlice slice;
      slice.set_chunk(ToInt(piece.chunk));
      slice.set_slot(piece.slot);
      slice.set_data(bytes.data(), bytes.size());
      slice.set_crc32c(Crc32c(bytes));
      RETURN_IF_ERROR(upload.Write(slice));
    }
    return absl::OkStatus();
  }

  SimulatedPs& ps_;
  const std::shared_ptr<const v1::JobPlan> plan_;
  std::vector<Held> carried_;
  std::vector<std::unique_ptr<Local>> shards_;
  v1::MemberJobState state_ = v1::MEMBER_PREPARING;
  v1::MemberError error_;
  uint64_t prepared_ = 0;
  bool halting_ = false;
  bool released_ = false;
  int era_ = 0;              // callbacks of an earlier era do nothing
  uint64_t held_asked_ = 0;  // the newest snapshot that was requested of the held shards
  int saving_ = 0;           // snapshots of held shards in flight
  std::set<std::string> lost_links_;
  std::vector<v1::SnapshotReport> snapshots_;
  std::shared_ptr<int> exists_ = std::make_shared<int>();
};

SimulatedPs::SimulatedPs(SimulatedWorld* world, std::string name, PsMetrics* metrics)
    : SimulatedMember(world, std::move(name), v1::PS), metrics_(metrics) {}

SimulatedPs::~SimulatedPs() { loop_.reset(); }

void SimulatedPs::Begin(v1::Hello& hello) {
  loop_ = std::make_unique<ShardLoop>(world().network().MakeTransport(), metrics_, &counts_,
                                      limits::kReleaseWaitMax);
  hello.add_addresses(loop_->transport().address());
  hello.set_memory_bytes(budget_.capacity_bytes());
}

void SimulatedPs::End() {
  loop_.reset();
  service_.reset();
  leaving_.clear();
}

std::vector<v1::JobReport> SimulatedPs::Reports() {
  std::vector<v1::JobReport> reports;
  if (service_ != nullptr) reports.push_back(service_->Report());
  return reports;
}

bool SimulatedPs::Turn() {
  const ShardLoop::Clock::time_point now(
      std::chrono::nanoseconds(absl::ToInt64Nanoseconds(time().now() - absl::UnixEpoch())));
  const bool something = loop_->Turn([now] { return now; }) > 0;
  std::erase_if(leaving_, [](const auto& service) { return service->gone(); });
  return something;
}

void SimulatedPs::Handle(const v1::Directive& directive) {
  if (directive.has_prepare()) return Prepare(directive.prepare().plan());
  if (directive.has_release()) return Release(directive.generation());
  if (service_ == nullptr || service_->plan().generation() != directive.generation()) return;
  if (directive.has_start()) service_->Start(directive.start().total_steps());
  if (directive.has_halt()) service_->Halt();
  if (directive.has_snapshot()) service_->TakeSnapshot(directive.snapshot());
  world().Stir();
}

void SimulatedPs::Prepare(const v1::JobPlan& plan) {
  std::vector<Service::Held> held;
  if (service_ != nullptr) {
    if (service_->plan().generation() >= plan.generation()) return;
    if (service_->plan().generation() == plan.carries()) {
      if (!service_->EndSaving()) return;
      held = service_->TakeHeld();
    }
    Release(service_->plan().generation());
  }
  service_ = std::make_unique<Service>(this, plan, std::move(held));
  ReportSoon();
}

void SimulatedPs::Release(uint32_t generation) {
  if (service_ == nullptr || service_->plan().generation() > generation) return;
  service_->Release();
  leaving_.push_back(std::move(service_));
  ReportSoon();
  world().Stir();
}

}  // namespace muster
