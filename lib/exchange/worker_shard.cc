#include "lib/exchange/worker_shard.h"

#include <glog/logging.h>

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "lib/limits/limits.h"
#include "lib/plan/chunk_check.h"
#include "lib/shard/core/plan_check.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// How long a new job waits for memory that the last transfers of a released job still use. After
// that it is refused.
constexpr absl::Duration kMemoryPatience = absl::Seconds(5);

}  // namespace

v1::JobPlan PlanOfRingShard(const v1::JobPlan& plan) {
  v1::JobPlan view = plan;
  view.mutable_workers()->DeleteSubrange(1, view.workers_size() - 1);
  view.mutable_workers(0)->set_samples(plan.spec().data().batch_size());
  v1::SyncSpec& sync = *view.mutable_spec()->mutable_sync();
  sync.Clear();
  sync.set_mode(v1::BSP);
  return view;
}

absl::StatusOr<std::unique_ptr<WorkerShard>> WorkerShard::Create(Options options,
                                                                 std::stop_token stop) {
  const v1::JobPlan& plan = *options.plan;
  if (plan.shards_size() != plan.workers_size()) {
    return BadPlan(
        plan, absl::StrCat(plan.shards_size(), " shards of ", plan.workers_size(), " workers"));
  }
  const auto shard = ShardIndex(ToInt(options.rank));
  const auto view = std::make_shared<const v1::JobPlan>(PlanOfRingShard(plan));
  RETURN_IF_ERROR(CheckPlan(*view));
  ASSIGN_OR_RETURN(auto reservation, options.budget->Reserve(
                                         ParameterShard::BytesNeeded(*view, shard), kMemoryPatience,
                                         /*unannounced=*/absl::ZeroDuration(), stop));
  ASSIGN_OR_RETURN(auto parameters, ParameterShard::Create(view, shard, std::move(reservation)));
  if (plan.restore().empty()) {
    for (const LocalChunk chunk : parameters->chunks()) parameters->Initialize(chunk);
  } else if (parameters->chunk_count() > 0) {
    RETURN_IF_ERROR(options.checkpoints->ReadShard(*parameters, stop, options.restored));
  }
  return absl::WrapUnique(new WorkerShard(std::move(options), std::move(parameters)));
}

WorkerShard::WorkerShard(Options options, std::unique_ptr<ParameterShard> parameters)
    : options_(std::move(options)),
      parameters_(std::move(parameters)),
      orders_(limits::kMailboxMessagesMax),
      written_(1) {
  if (options_.checkpoints == nullptr) return;
  auto written = [this](const ShardSnapshot& snapshot, absl::Duration) {
    CHECK(written_.TryPost([id = snapshot.id, step = snapshot.step](ParameterShard& shard) {
      shard.SnapshotWritten(id, step);
    })) << "a second snapshot was written before the first was handled";
    TellOfOrders();
  };
  writer_ = std::make_unique<SnapshotWriter>(SnapshotWriter::Options{
      .plan = options_.plan,
      .checkpoints = options_.checkpoints,
      .written = std::move(written),
      .report_soon = options_.report_soon,
  });
}

absl::StatusOr<std::shared_ptr<MemoryBudget::Reservation>> WorkerShard::Reserve(int64_t bytes) {
  return options_.budget->Reserve(bytes, kMemoryPatience);
}

void WorkerShard::TellOfOrders() {
  has_orders_.store(true, std::memory_order_release);
  absl::MutexLock lock(&mu_);
  if (wake_) wake_();
}

void WorkerShard::WakeBy(std::function<void()> wake) {
  absl::MutexLock lock(&mu_);
  wake_ = std::move(wake);
}

void WorkerShard::Turn(absl::FunctionRef<ParameterShard::Clock::time_point()> clock) {
  RunOrders();
  parameters_->PassOverSnapshots(clock);
}

void WorkerShard::RunOrders() {
  // Cleared before the orders are taken: an order that comes in between is taken now or sets it
  // again.
  if (!has_orders_.exchange(false, std::memory_order_acquire)) return;
  for (Order& order : written_.TakeAll()) order(*parameters_);
  for (Order& order : orders_.TakeAll()) order(*parameters_);
}

void WorkerShard::TakeSnapshot(uint64_t id, int64_t step) {
  // If there is no room, the coordinator repeats the request.
  if (orders_.TryPost([id, step](ParameterShard& shard) { shard.TakeSnapshot(id, step); })) {
    TellOfOrders();
  }
}

std::vector<v1::SnapshotReport> WorkerShard::SnapshotReports() const {
  return writer_ == nullptr ? std::vector<v1::SnapshotReport>() : writer_->reports();
}

void WorkerShard::Close() {
  if (writer_ != nullptr) writer_->Close();
}

void WorkerShard::Taken(std::shared_ptr<const ShardSnapshot> snapshot) {
  if (writer_ != nullptr) writer_->Taken(std::move(snapshot));
}

void WorkerShard::Declined(uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                           const std::string& message) {
  if (writer_ != nullptr) writer_->Declined(parameters_->shard(), id, step, outcome, message);
}

}  // namespace muster
