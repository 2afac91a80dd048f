// Runs a ShardLoop on a thread of its own. Everything about a chunk happens on one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/concurrency/mailbox.h"
#include "lib/limits/limits.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/transport/core/transport.h"
#include "services/ps/ps_metrics.h"
#include "services/ps/shard_listener.h"
#include "services/ps/shard_loop.h"

namespace muster {

// Repeats: run commands, turn the loop, wait. Commands come through a mailbox, which the thread
// opens only after a post. In the steady state of training the thread takes no lock of ours and
// allocates nothing (shard_thread_hot_path_test).
class ShardThread {
 public:
  // Starts the thread and blocks until it has its transport. Returns the factory's error if it has
  // none. `metrics` must outlive the thread. `release_wait` is passed to ShardLoop.
  static absl::StatusOr<std::unique_ptr<ShardThread>> Start(
      TransportFactory factory, PsMetrics* metrics,
      absl::Duration release_wait = limits::kReleaseWaitMax);
  ~ShardThread();  // calls Stop()
  // Destroys the transport, then every shard (each listener is told), and joins the thread. Later
  // commands are refused.
  void Stop();

  const std::string& address() const { return address_; }
  // The transport's name without any peer, such as "shm+tcp".
  const std::string& transport_name() const { return transport_name_; }

  // ---- commands of the loop; any thread may call them, and they run in order
  void Install(std::unique_ptr<ParameterShard> shard, ShardListener* listener,
               ShardProgress* progress);
  void StartJob(uint64_t job, uint32_t generation, int64_t total_steps);
  void TakeSnapshot(uint64_t job, uint32_t generation, uint64_t id, int64_t step);
  void SnapshotWritten(uint64_t job, uint32_t generation, uint64_t id, int64_t step);
  void Halt(uint64_t job, uint32_t generation);
  void Release(uint64_t job, uint32_t generation);

 private:
  using Command = absl::AnyInvocable<void()>;

  ShardThread(TransportFactory factory, PsMetrics* metrics, absl::Duration release_wait);

  absl::Status AwaitTransport() ABSL_LOCKS_EXCLUDED(mu_);
  void Run(const TransportFactory& factory);
  absl::Status MakeLoop(const TransportFactory& factory) ABSL_LOCKS_EXCLUDED(mu_);
  void Serve();
  void Wake() ABSL_LOCKS_EXCLUDED(mu_);
  void RunCommands();

  PsMetrics* const metrics_;
  ShardCounts& counts_;  // of this thread
  const absl::Duration release_wait_;
  std::string address_;
  std::string transport_name_;

  std::unique_ptr<ShardLoop> loop_;  // used only by the thread
  std::atomic<bool> mail_ = false;   // spares the loop the mailbox's lock
  std::atomic<bool> stopping_ = false;
  absl::Mutex mu_;
  std::optional<absl::Status> made_ ABSL_GUARDED_BY(mu_);  // result of MakeLoop()
  Transport* awake_ ABSL_GUARDED_BY(mu_) = nullptr;        // the loop's transport, while it exists
  Mailbox<Command> mailbox_;
  std::jthread thread_;  // last: starts when everything else exists
};

}  // namespace muster
