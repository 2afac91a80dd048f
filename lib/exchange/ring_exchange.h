// The exchange without parameter servers: workers own the shards and pass gradients and values
// around a ring.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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
#include "lib/exchange/chunk_trace.h"
#include "lib/exchange/exchange_metrics.h"
#include "lib/exchange/gradient_exchange.h"
#include "lib/exchange/send_queue.h"
#include "lib/exchange/worker_shard.h"
#include "lib/shard/memory_budget.h"
#include "lib/shard/parameter_shard.h"
#include "lib/transport/session.h"
#include "lib/transport/transport.h"
#include "lib/transport/wire.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Of n workers, rank r owns the chunks of shard r: its values and optimizer state. A step of a
// chunk with owner o goes around the ring twice:
//
//   reduce   rank o + 1 sends its gradient to o + 2, which adds its own and sends the sum on, ...,
//            to o, which adds its own last and gives the sum to its shard (PUSH)
//   gather   o sends the new value to o + 1, which places it in its parameters' memory and sends it
//            on from there, ..., to o - 1 (PARAMS)
//
// so that a worker sends and receives 2 (n - 1) / n of the parameters' bytes per step, the least
// that is possible: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", JPDC 69, 2009. Chunks travel independently of each other: each goes on as soon as
// it is here and this worker's gradient is final. The order of the sum is the ring's, so a run with
// the same number of workers repeats to the bit.
//
// Owns the communication thread, which owns the transport, the connections to both neighbours and
// (where steps are judged) between rank 0 and all, and uses the worker's shard.
class RingExchange : public GradientExchange, private MessageReceiver, private ShardOutput {
 public:
  struct Options {
    std::shared_ptr<const v1::JobPlan> plan;
    int rank = 0;
    TransportFactory transport;    // called on the communication thread
    WorkerShard* shard = nullptr;  // of this rank; outlives the exchange

    // By parameter, f32[elements], host memory that outlives the exchange. Sums are made in the
    // gradients' memory.
    std::vector<absl::Span<float>> parameters;
    std::vector<absl::Span<float>> gradients;
    std::vector<absl::Span<std::byte>> memory;  // what holds them, to be registered

    ExchangeTuning tuning;
    absl::Duration hello_timeout = absl::Seconds(60);  // a neighbour says it after its own Start
    // The last resort, as in PsExchange.
    absl::Duration answer_timeout = absl::Minutes(10);

    ExchangeMetrics* metrics = nullptr;
  };

  // Opens the transport, so that address() is known (a ring of one sleeps on it). INVALID_ARGUMENT
  // when the plan's chunks do not cut its parameters or its shards are not its workers'; the
  // transport's error.
  static absl::StatusOr<std::unique_ptr<RingExchange>> Create(Options options);
  ~RingExchange() override;  // joins the thread; drops what is in flight

  // `addresses`: of all shards. Waits until both neighbours have said HELLO.
  absl::Status Connect(int64_t total_steps, std::vector<std::string> addresses) override
      ABSL_LOCKS_EXCLUDED(mu_);
  std::string address() const override { return address_; }
  bool HasParameter(int parameter, int64_t version) const override {
    const std::atomic<int64_t>& here =
        options_.tuning.overlap ? parameter_versions_[parameter] : version_;
    return here.load(std::memory_order_acquire) >= version;
  }
  absl::Status AwaitParameter(int parameter, int64_t version) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AwaitVersion(int64_t version) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<float> AwaitLossScale(int64_t version) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AwaitAnswers() override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Push(int chunk, int64_t step) override ABSL_LOCKS_EXCLUDED(mu_);
  int64_t version() const override { return version_.load(std::memory_order_acquire); }
  double GradientNorm(int64_t version) const override;
  void Interrupt() override ABSL_LOCKS_EXCLUDED(mu_);
  void Fail(absl::Status why) override ABSL_LOCKS_EXCLUDED(mu_);
  bool failed() const override { return failed_.load(std::memory_order_acquire); }
  int64_t step() const override { return std::max(version(), plan_.first_step()); }
  std::string culprit() const override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // The sum of the ranks before this one, of step `sum_step`.
  enum class Incoming : uint8_t { kAwaited, kPlacing, kHere };
  // Of the communication thread alone, but for `version`.
  struct Chunk {
    std::atomic<int64_t> version;  // of the values here; read by others to name what they wait for
    bool pushed = false;           // this worker's gradient of step `version` waits for the sum
    Incoming incoming = Incoming::kAwaited;
    int64_t sum_step = 0;
    float* slab = nullptr;               // f32[elements]; null where no sum comes in
    const float* sum = nullptr;          // in the slab, or lent
    PayloadLease lease;                  // of what is lent
    bool sending_sum = false;            // or waiting to be sent
    bool sending_value = false;          // likewise
    bool answered = true;                // the values have `version`, and everybody may know
    std::array<double, 2> squares = {};  // of the gradient that led to versions 2n and 2n + 1
    float loss_scale = 0;                // that came with the value
  };
  enum class Payload : uint8_t { kValue, kSum };

  explicit RingExchange(Options options);

  int ranks() const { return plan_.workers_size(); }
  int next() const { return (options_.rank + 1) % ranks(); }
  int previous() const { return (options_.rank + ranks() - 1) % ranks(); }
  bool Owns(int chunk) const { return plan_.chunks(chunk).shard() == options_.rank; }
  bool BeginsSum(int chunk) const { return plan_.chunks(chunk).shard() == previous(); }
  bool EndsGather(int chunk) const { return plan_.chunks(chunk).shard() == next(); }
  absl::Span<float> GradientOf(int chunk) const;
  absl::Span<float> ValuesOf(int chunk) const;

  void Serve();
  absl::Status Open();
  absl::StatusOr<absl::Span<std::byte>> AllocateSlab();
  void Join();
  bool IsPeer(int rank) const;
  bool Dial(int rank, const std::string& address);
  void Greet(int rank);
  void OpenIfAnswered();
  void TakePushed() ABSL_LOCKS_EXCLUDED(mu_);

  void Combine(int chunk);
  void AddIncoming(int chunk);
  void GiveToShard(int chunk);
  void ValueHere(int chunk, const WireHeader& header);
  void Answered(int chunk) ABSL_LOCKS_EXCLUDED(mu_);
  void Enqueue(int chunk, Payload payload);
  void SendReady();
  void Sent(int chunk, Payload payload, const absl::Status& status);
  WireHeader HeaderOf(MessageKind kind) const;

  // MessageReceiver.
  void PeerJoined(PeerId peer, const LinkIdentity& who) override;
  PayloadPlace PlacePayload(PeerId from, const WireHeader& header) override;
  void Received(PeerId from, const WireHeader& header, absl::Span<const std::byte> payload,
                PayloadLease lease) override;
  void PayloadLost(PeerId from, const WireHeader& header) override;
  void PeerLost(PeerId peer, const absl::Status& why) override;
  int SenderOf(PeerId from, const WireHeader& header);
  bool AwaitsValue(int chunk, int64_t step) const;
  bool IsWhole(const WireHeader& header, int chunk);
  PayloadPlace PlaceSum(const WireHeader& header);
  PayloadPlace PlaceValue(const WireHeader& header);
  void ReceivedHello(int rank);
  void ReceivedSum(const WireHeader& header, absl::Span<const std::byte> payload,
                   PayloadLease lease);
  void ReceivedValue(const WireHeader& header, absl::Span<const std::byte> payload);

  // ShardOutput: the shard believes to have one worker, rank 0.
  void SendTo(int rank, const WireHeader& header, absl::Span<const std::byte> payload,
              Transport::SendDone done) override;
  void SendToShard(int shard, const WireHeader& header, absl::Span<const std::byte> payload,
                   Transport::SendDone done) override;
  void StepJudged(const StepVerdict&) override {}  // the trainer sees it by the norm
  kernels::OutgoingStores UpdateBegins(int64_t) override {
    return kernels::OutgoingStores::kDirect;
  }
  void UpdateEnds(double) override {}
  void SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) override;
  void SnapshotDeclined(uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                        const std::string& message) override;

  absl::Status Await(absl::FunctionRef<bool()> reached, int64_t version) ABSL_LOCKS_EXCLUDED(mu_);
  void SetFailure(absl::Status why, absl::string_view culprit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FailBecauseOf(int rank, absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  std::string NameOfRank(int rank) const;
  std::string NameOfChunk(int chunk) const;
  int FirstChunkBehind(int64_t version) const;

  const Options options_;
  const v1::JobPlan& plan_;
  const bool has_loss_scale_;
  const bool judged_;
  const ChunkTrace trace_;           // of sums; values pass on unseen
  std::vector<int> place_in_order_;  // by chunk: those that a forward reads first are low
  std::vector<bool> frozen_;         // by parameter
  std::string address_;              // set before Create() returns

  // The communication thread's.
  std::unique_ptr<Transport> transport_;
  std::shared_ptr<Slab> slab_;  // where sums come in
  std::vector<std::unique_ptr<Transport::MemoryRegistration>> registrations_;
  LinkCredentials credentials_;
  std::vector<PeerId> peers_;  // by rank
  bool joined_ = false;        // Connect() was called: peers of higher ranks are connected to
  bool open_ = false;          // all have said HELLO
  std::vector<Chunk> chunks_;
  std::vector<int> chunks_of_parameter_;  // how many
  std::vector<int> unanswered_;           // by parameter: chunks
  int parameters_behind_;                 // that do not have version() + 1 yet
  std::vector<int> taken_;                // chunks from pushed_, being looked at
  SendQueue to_next_;
  int64_t enqueued_ = 0;                                  // chunks, so far
  std::optional<LinkMetrics> next_link_, previous_link_;  // of a ring of more than one

  std::vector<std::atomic<int64_t>> parameter_versions_;
  std::atomic<int64_t> version_;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> closing_ = false;

  mutable absl::Mutex mu_;
  Transport* waking_ ABSL_GUARDED_BY(mu_) = nullptr;  // transport_, while it may be woken
  bool opened_ ABSL_GUARDED_BY(mu_) = false;          // address_ is set, or failure_
  std::vector<std::string> addresses_ ABSL_GUARDED_BY(mu_);
  std::vector<char> hello_ ABSL_GUARDED_BY(mu_);  // by rank: 1: it has said HELLO
  int64_t total_steps_ ABSL_GUARDED_BY(mu_) = 0;
  bool connecting_ ABSL_GUARDED_BY(mu_) = false;
  bool connected_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<int> pushed_ ABSL_GUARDED_BY(mu_);  // chunks whose gradients are final
  int64_t chunks_awaited_ ABSL_GUARDED_BY(mu_);   // pushed, or not here at first
  float loss_scale_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t loss_scale_version_ ABSL_GUARDED_BY(mu_);  // whose it is
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::string culprit_ ABSL_GUARDED_BY(mu_);

  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace muster
