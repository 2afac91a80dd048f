// The shard that a worker of an allreduce job owns: there are no ps, so the workers hold values and
// optimizer state among them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "lib/concurrency/mailbox.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/shard/snapshot/checkpoint_client.h"
#include "lib/shard/snapshot/snapshot_writer.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// The plan as the shard of a ring sees it: of one worker, who pushes the sum of all gradients.
v1::JobPlan PlanOfRingShard(const v1::JobPlan& plan);

// Shard r of the plan, with its values from the plan's checkpoint or its initialisers. The thread
// of the exchange that it is given to (RingExchange) uses parameters(), Taken() and Declined() and
// carries out what any other thread orders. Outlives that exchange.
class WorkerShard {
 public:
  struct Options {
    std::shared_ptr<const v1::JobPlan> plan;
    Rank rank{};
    MemoryBudget* budget = nullptr;           // these two outlive the shard
    CheckpointClient* checkpoints = nullptr;  // null: neither restores nor writes (tests)
    std::function<void()> report_soon = [] {};
    std::function<void(int64_t bytes)> restored = nullptr;  // told of what Create() reads
  };
  // Blocks while the checkpoint is read; CANCELLED once `stop` is requested. INVALID_ARGUMENT
  // (reason "BAD_PLAN"), RESOURCE_EXHAUSTED (reason "MEMORY_EXHAUSTED"), DATA_LOSS.
  static absl::StatusOr<std::unique_ptr<WorkerShard>> Create(Options options, std::stop_token stop);

  // ---- any thread
  void TakeSnapshot(uint64_t id, int64_t step);
  std::vector<v1::SnapshotReport> SnapshotReports() const;
  // Gives up what is being written.
  void Close();
  // Memory beside the shard's own that its exchange is going to allocate. RESOURCE_EXHAUSTED,
  // reason "MEMORY_EXHAUSTED", where the budget has no room.
  absl::StatusOr<std::shared_ptr<MemoryBudget::Reservation>> Reserve(int64_t bytes);

  // ---- the exchange's thread
  ParameterShard& parameters() { return *parameters_; }
  void Taken(std::shared_ptr<const ShardSnapshot> snapshot);
  void Declined(uint64_t id, int64_t step, v1::SnapshotOutcome outcome, const std::string& message);
  // Carries out what was ordered. In every turn of the thread: a snapshot may be written for too
  // long.
  void Turn(absl::FunctionRef<ParameterShard::Clock::time_point()> clock);
  // How the thread is told that there are orders; null when it ends.
  void WakeBy(std::function<void()> wake) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Order = absl::AnyInvocable<void(ParameterShard&)>;

  WorkerShard(Options options, std::unique_ptr<ParameterShard> parameters);
  void TellOfOrders() ABSL_LOCKS_EXCLUDED(mu_);
  void RunOrders();

  const Options options_;
  const std::unique_ptr<ParameterShard> parameters_;
  Mailbox<Order> orders_;
  // What no longer needs its memory. Apart, because the shard holds one snapshot and its chunks
  // stand still until it hears of this: there is room for it however many orders wait.
  Mailbox<Order> written_;
  std::atomic<bool> has_orders_ = false;  // spares the thread the mailboxes' locks
  absl::Mutex mu_;
  std::function<void()> wake_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<SnapshotWriter> writer_;  // last: its thread uses the rest; null without a client
};

}  // namespace muster
