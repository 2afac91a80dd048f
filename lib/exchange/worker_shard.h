// The shard that a worker of an allreduce job owns. Without ps, the workers hold values and
// optimizer state.
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

// Returns the plan as a shard of the ring sees it: with one worker, which pushes the sum of all
// gradients.
v1::JobPlan PlanOfRingShard(const v1::JobPlan& plan);

// Shard r of the plan, with values from the plan's checkpoint or its initializers. The thread of
// the exchange (RingExchange) uses parameters(), Taken() and Declined(), and runs the orders of
// other threads. Must outlive that exchange.
class WorkerShard {
 public:
  struct Options {
    std::shared_ptr<const v1::JobPlan> plan;
    Rank rank{};
    MemoryBudget* budget = nullptr;           // these two must outlive the shard
    CheckpointClient* checkpoints = nullptr;  // null: neither restores nor writes (tests)
    std::function<void()> report_soon = [] {};
    // called with the bytes that Create() reads
    std::function<void(int64_t bytes)> restored = nullptr;
  };
  // Blocks while the checkpoint is read. Returns CANCELLED once `stop` is requested,
  // INVALID_ARGUMENT (reason "BAD_PLAN"), RESOURCE_EXHAUSTED (reason "MEMORY_EXHAUSTED"), or
  // DATA_LOSS.
  static absl::StatusOr<std::unique_ptr<WorkerShard>> Create(Options options, std::stop_token stop);

  // ---- any thread
  void TakeSnapshot(uint64_t id, int64_t step);
  std::vector<v1::SnapshotReport> SnapshotReports() const;
  // Abandons running writes of snapshots.
  void Close();
  // Reserves memory for the exchange, besides the shard's own. Returns RESOURCE_EXHAUSTED (reason
  // "MEMORY_EXHAUSTED") if the budget has no room.
  absl::StatusOr<std::shared_ptr<MemoryBudget::Reservation>> Reserve(int64_t bytes);

  // ---- the exchange's thread
  ParameterShard& parameters() { return *parameters_; }
  void Taken(std::shared_ptr<const ShardSnapshot> snapshot);
  void Declined(uint64_t id, int64_t step, v1::SnapshotOutcome outcome, const std::string& message);
  // Runs the orders. Called in every turn of the thread, because it also limits how long the write
  // of a snapshot delays updates.
  void Turn(absl::FunctionRef<ParameterShard::Clock::time_point()> clock);
  // Sets the function that wakes the thread when there are orders; null when the thread ends.
  void WakeBy(std::function<void()> wake) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Order = absl::AnyInvocable<void(ParameterShard&)>;

  WorkerShard(Options options, std::unique_ptr<ParameterShard> parameters);
  void TellOfOrders() ABSL_LOCKS_EXCLUDED(mu_);
  void RunOrders();

  const Options options_;
  const std::unique_ptr<ParameterShard> parameters_;
  Mailbox<Order> orders_;
  // Holds the order that a snapshot was written. It is separate because chunks wait for it: it
  // needs room however many orders wait. The shard has one snapshot at a time.
  Mailbox<Order> written_;
  std::atomic<bool> has_orders_ = false;  // spares the thread the mailboxes' locks
  absl::Mutex mu_;
  std::function<void()> wake_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<SnapshotWriter> writer_;  // last: its thread uses the rest; null without a client
};

}  // namespace muster
