// A worker's side of the data plane: gradients out, parameters in.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/cluster/limits.h"
#include "lib/transport/transport.h"
#include "lib/transport/wire.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/worker/worker_metrics.h"

namespace muster {

// Serves one generation of one job. Owns the communication thread, which owns the transport and the
// connections to all shards of the plan, greets them, fetches every chunk at plan.first_step, and
// from then on sends gradients as they become final, chunks that the next forward reads first
// going first, and places the answers straight into the parameters' memory.
//
// Version v of a parameter has had updates 0 .. v - 1. Versions never go back. The first failure is
// final: every wait and push returns it from then on. Thread-safe.
class GradientExchange : private MessageReceiver {
 public:
  struct Options {
    std::shared_ptr<const v1::JobPlan> plan;
    int rank = 0;
    TransportFactory transport;  // called on the communication thread

    // By parameter, f32[elements]. All four outlive the exchange; the memories hold the tensors.
    std::vector<absl::Span<float>> parameters;
    std::vector<absl::Span<float>> gradients;
    absl::Span<std::byte> parameter_memory;
    absl::Span<std::byte> gradient_memory;

    // Gradient bytes handed to the transport whose sending is not finished. Answers are not waited
    // for: under BSP they wait for the other workers, whose pushes come in another order.
    int64_t inflight_bytes_max = limits::kInflightBytesMax;
    absl::Duration hello_timeout = absl::Seconds(10);
    // The last resort: a lost peer is noticed by the transport or the coordinator long before, and
    // other workers may be slow.
    absl::Duration answer_timeout = absl::Minutes(10);

    WorkerMetrics* metrics = nullptr;
  };

  // INVALID_ARGUMENT when the plan's chunks do not cut its parameters.
  static absl::StatusOr<std::unique_ptr<GradientExchange>> Create(Options options);
  ~GradientExchange() override;  // joins the thread; drops what is in flight

  // Starts the thread and waits until every shard has answered HELLO. Call once. A failure names
  // the shard and its member (UNAVAILABLE, reason PS_UNREACHABLE).
  absl::Status Connect() ABSL_LOCKS_EXCLUDED(mu_);

  // Whether the parameter's values have `version`: costs one load.
  bool HasParameter(int parameter, int64_t version) const {
    return parameter_versions_[parameter].load(std::memory_order_acquire) >= version;
  }

  // Blocks until the parameter (all parameters) has `version`. ABORTED when that is not so at
  // Interrupt(), DEADLINE_EXCEEDED (reason STEP_TIMEOUT) after answer_timeout; the message names
  // step, chunk, shard and member.
  absl::Status AwaitParameter(int parameter, int64_t version) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AwaitVersion(int64_t version) ABSL_LOCKS_EXCLUDED(mu_);

  // Of an fp16 job: blocks until some value of `version` is here, which brings the loss scale for
  // the gradients of step `version`. Codes as AwaitParameter.
  absl::StatusOr<float> AwaitLossScale(int64_t version) ABSL_LOCKS_EXCLUDED(mu_);

  // Blocks until everything that was pushed or fetched has been answered, even when interrupted and
  // however long it takes; ends early only with a failure.
  absl::Status AwaitAnswers() ABSL_LOCKS_EXCLUDED(mu_);

  // The gradient of `step` is final in its memory, and nobody reads the parameter until it has
  // version step + 1. The parameter's version must be `step`. Never blocks.
  absl::Status Push(int parameter, int64_t step) ABSL_LOCKS_EXCLUDED(mu_);

  // All parameters have it; plan.first_step - 1: not all are fetched yet.
  int64_t version() const { return version_.load(std::memory_order_acquire); }

  // Norm of the whole batch's gradient that led to `version`, which is version() or the one before.
  double GradientNorm(int64_t version) const;

  // Ends the interruptible waits, now and from now on: the job pauses.
  void Interrupt() ABSL_LOCKS_EXCLUDED(mu_);

  // Makes everything return `why`, unless it has failed before.
  void Fail(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);

  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // The first step whose answers are not all in.
  int64_t step() const { return std::max(version(), plan_.first_step()); }

  // The ps member to blame for the failure; "" when none.
  std::string culprit() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Of the communication thread alone, but for `version`.
  struct Chunk {
    std::atomic<int64_t> version;  // read by others to name what they wait for
    int64_t awaited = -1;          // version asked for and not here yet; -1: none
    bool sending = false;
    std::array<double, 2> squares = {};  // of the gradient that led to versions 2n and 2n + 1
  };

  explicit GradientExchange(Options options);

  void Serve();
  absl::Status Open();
  void TakePushed() ABSL_LOCKS_EXCLUDED(mu_);
  void SendReady();
  void Sent(int chunk, const absl::Status& status);
  void Answered(int chunk);
  WireHeader HeaderOf(MessageKind kind, int chunk, int64_t step) const;
  bool IsOurs(const WireHeader& header) const;

  absl::Span<std::byte> PlacePayload(const WireHeader& header) override;
  void Received(const WireHeader& header, absl::Span<const std::byte> payload) override;
  void PeerLost(PeerId peer, const absl::Status& why) override;
  void Greet(int shard);
  void Greeted();
  void Fetch(int shard);
  void Refused(const WireHeader& header);
  bool TakeLossScale(const WireHeader& header) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Status Await(absl::FunctionRef<bool()> reached, int64_t version) ABSL_LOCKS_EXCLUDED(mu_);
  void SetFailure(absl::Status why, absl::string_view culprit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FailBecauseOf(int shard, absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  std::string NameOfShard(int shard) const;
  std::string NameOfChunk(int chunk) const;
  int FirstChunkBehind(int64_t version, int shard) const;

  const Options options_;
  const v1::JobPlan& plan_;
  const bool has_loss_scale_;
  std::vector<std::vector<int>> chunks_of_parameter_;
  std::vector<int> send_order_;      // chunks, those that a forward reads first first
  std::vector<int> place_in_order_;  // by chunk: its place in send_order_

  // The communication thread's.
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Transport::MemoryRegistration> registered_parameters_;
  std::unique_ptr<Transport::MemoryRegistration> registered_gradients_;
  std::string greeting_;
  std::vector<PeerId> peers_;  // by shard
  std::vector<Chunk> chunks_;
  std::vector<int> unanswered_;  // by parameter: chunks
  int parameters_behind_;        // that do not have version() + 1 yet
  std::vector<int> ready_;       // a heap of places in send_order_, the first on top
  std::vector<int> taken_;       // parameters from pushed_, being looked at
  int64_t inflight_bytes_ = 0;

  std::vector<std::atomic<int64_t>> parameter_versions_;
  std::atomic<int64_t> version_;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> closing_ = false;

  mutable absl::Mutex mu_;
  Transport* waking_ ABSL_GUARDED_BY(mu_) = nullptr;  // transport_, while it may be woken
  std::vector<int> pushed_ ABSL_GUARDED_BY(mu_);      // parameters whose gradients are final
  int greeted_ ABSL_GUARDED_BY(mu_) = 0;              // shards, in order
  int64_t parameters_awaited_ ABSL_GUARDED_BY(mu_);   // pushed or fetched and not answered
  float loss_scale_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t loss_scale_version_ ABSL_GUARDED_BY(mu_);  // whose it is
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::string culprit_ ABSL_GUARDED_BY(mu_);

  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace muster
