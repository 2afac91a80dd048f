// The exchange without parameter servers: workers own the shards and pass gradients and values
// around a ring.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/exchange/chunk_trace.h"
#include "lib/exchange/communication_thread.h"
#include "lib/exchange/credit_waits.h"
#include "lib/exchange/exchange_metrics.h"
#include "lib/exchange/gradient_exchange.h"
#include "lib/exchange/send_queue.h"
#include "lib/exchange/version_board.h"
#include "lib/exchange/worker_shard.h"
#include "lib/limits/limits.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Of n workers, rank r owns the values and the optimizer state of the chunks of shard r. A step of
// a chunk with owner o goes around the ring twice:
//
//   reduce   rank o + 1 sends its gradient to o + 2, which adds its own and sends the sum on, ...,
//            to o, which adds its own last and gives the sum to its shard (PUSH)
//   gather   o sends the new value to o + 1, which places it in its parameters' memory and sends it
//            on from there, ..., to o - 1 (PARAMS)
//
// Each worker thus sends and receives 2 (n - 1) / n of the parameters' bytes per step, which is the
// minimum: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", JPDC 69, 2009.
//
// Chunks travel independently: each one is passed on as soon as it is here and this worker's
// gradient is final. Gradients are summed in the order of the ring, so a run with the same number
// of workers repeats to the bit.
//
// Owns the communication thread, which owns the transport and the connections to both neighbours.
// If steps are judged, rank 0 is also connected to all others. Uses the worker's shard.
class RingExchange : public GradientExchange,
                     private CommunicationThread::Work,
                     private ShardOutput {
 public:
  struct Options {
    std::shared_ptr<const v1::JobPlan> plan;
    Rank rank{};
    TransportFactory transport;    // called on the communication thread
    WorkerShard* shard = nullptr;  // of this rank; must outlive the exchange

    // One f32[elements] per parameter, in host memory that must outlive the exchange. Sums are
    // computed in the gradients' memory.
    std::vector<absl::Span<float>> parameters;
    std::vector<absl::Span<float>> gradients;
    std::vector<absl::Span<std::byte>> memory;  // the memory of both, to be registered

    ExchangeTuning tuning;
    // for HELLO, which a neighbour says after its own Start
    absl::Duration hello_timeout = limits::kHelloWaitMax;
    absl::Duration answer_timeout = limits::kAnswerWaitMax;

    ExchangeMetrics* metrics = nullptr;
  };

  // Opens the transport, so that address() is known. (A ring of one worker only sleeps on it.)
  // Returns INVALID_ARGUMENT if the plan's chunks do not cover its parameters or its shards do not
  // belong to its workers. Returns RESOURCE_EXHAUSTED if there is no memory for sums. Returns the
  // transport's error if it cannot open.
  static absl::StatusOr<std::unique_ptr<RingExchange>> Create(Options options);
  ~RingExchange() override;  // joins the thread; drops transfers under way

  // `addresses` are those of all shards. Blocks until all peers have said HELLO: both neighbours
  // and, if steps are judged, rank 0, which waits for all ranks. Returns INVALID_ARGUMENT if the
  // number of addresses is wrong.
  absl::Status Connect(int64_t total_steps, std::vector<std::string> addresses) override;
  std::string address() const override { return address_; }
  bool HasParameter(int parameter, int64_t version) const override {
    return board_.HasParameter(parameter, version);
  }
  absl::Status AwaitParameter(int parameter, int64_t version) override;
  absl::Status AwaitVersion(int64_t version) override;
  absl::StatusOr<float> AwaitLossScale(int64_t version) override;
  absl::Status AwaitAnswers() override;
  absl::Status Push(ChunkId chunk, int64_t step) override;
  int64_t version() const override { return board_.version(); }
  double GradientNorm(int64_t version) const override;
  double GradientSquares(ChunkId chunk, int64_t version) const override {
    return chunks_[chunk].squares[version & 1];
  }
  void Interrupt() override { board_.Interrupt(); }
  void Fail(absl::Status why) override { board_.Fail(std::move(why), ""); }
  bool failed() const override { return board_.failed(); }
  int64_t step() const override { return board_.step(); }
  std::string culprit() const override { return board_.culprit(); }

 private:
  // The state of the sum of the ranks before this one, for step `sum_step`.
  enum class Incoming : uint8_t { kAwaited, kPlacing, kHere };
  // Changed only by the communication thread. Other threads read `version` and `answered` to name
  // what they wait for, and `squares` of a version that the board has.
  struct Chunk {
    std::atomic<int64_t> version;  // of the local values
    bool pushed = false;           // this worker's gradient of step `version` waits for the sum
    Incoming incoming = Incoming::kAwaited;
    int64_t sum_step = 0;
    float* slab = nullptr;                // f32[elements]; null if no sum is received
    const float* sum = nullptr;           // in the slab, or lent
    PayloadLease lease;                   // of a lent sum
    bool sending_sum = false;             // or queued
    bool sending_value = false;           // or queued
    std::array<int64_t, 2> ready_time{};  // when it was queued, by Payload
    std::atomic<bool> answered = true;    // the values have `version`, and the board may say so
    std::array<double, 2> squares = {};   // of the gradient that led to versions 2n and 2n + 1
    float loss_scale = 0;                 // received with the value
  };
  enum class Payload : uint8_t { kValue, kSum };

  explicit RingExchange(Options options);

  int ranks() const { return plan_.workers_size(); }
  Rank next() const { return Rank((ToInt(options_.rank) + 1) % ranks()); }
  Rank previous() const { return Rank((ToInt(options_.rank) + ranks() - 1) % ranks()); }
  const v1::PlanChunk& Planned(ChunkId chunk) const { return plan_.chunks(ToInt(chunk)); }
  Rank OwnerOf(ChunkId chunk) const { return OwnerOf(ShardIndex(Planned(chunk).shard())); }
  static Rank OwnerOf(ShardIndex shard) { return Rank(ToInt(shard)); }
  bool Owns(ChunkId chunk) const { return OwnerOf(chunk) == options_.rank; }
  bool BeginsSum(ChunkId chunk) const { return OwnerOf(chunk) == previous(); }
  bool EndsGather(ChunkId chunk) const { return OwnerOf(chunk) == next(); }
  const std::string& MemberOf(Rank rank) const { return plan_.workers(ToInt(rank)).member(); }
  absl::Span<float> GradientOf(ChunkId chunk) const;
  absl::Span<float> ValuesOf(ChunkId chunk) const;

  absl::Status AllocateSlab();

  // CommunicationThread::Work.
  absl::Status Open(Transport& transport) override;
  void Turn(absl::Span<const ChunkId> posted) override;
  void Closing() override;

  void Join();
  bool IsPeer(Rank rank) const;
  bool Dial(Rank rank, const std::string& address);
  void Greet(Rank rank);
  void OpenIfAnswered();

  void Combine(ChunkId chunk);
  void AddIncoming(ChunkId chunk);
  void GiveToShard(ChunkId chunk);
  void ValueHere(ChunkId chunk, const WireHeader& header);
  void Answered(ChunkId chunk);
  void Enqueue(ChunkId chunk, Payload payload);
  void SendReady();
  void Sent(ChunkId chunk, Payload payload, const absl::Status& status);
  WireHeader HeaderOf(MessageKind kind) const;

  // MessageReceiver.
  void PeerJoined(PeerId peer, const LinkIdentity& who) override;
  PayloadPlace PlacePayload(PeerId from, const WireHeader& header) override;
  void Received(PeerId from, const WireHeader& header, absl::Span<const std::byte> payload,
                PayloadLease lease) override;
  void PayloadLost(PeerId from, const WireHeader& header) override;
  void PeerLost(PeerId peer, const absl::Status& why) override;
  bool MaySay(Rank rank, MessageKind kind) const;
  std::optional<Rank> SenderOf(PeerId from, const WireHeader& header);
  bool AwaitsValue(ChunkId chunk, int64_t step) const;
  bool IsWhole(const WireHeader& header, ChunkId chunk);
  PayloadPlace PlaceSum(const WireHeader& header);
  PayloadPlace PlaceValue(const WireHeader& header);
  void ReceivedHello(Rank rank);
  void ReceivedSum(const WireHeader& header, absl::Span<const std::byte> payload,
                   PayloadLease lease);
  void ReceivedValue(const WireHeader& header, absl::Span<const std::byte> payload);

  // ShardOutput. The shard is told that it has one worker, rank 0.
  void SendTo(Rank rank, const WireHeader& header, absl::Span<const std::byte> payload,
              Transport::SendDone done) override;
  void SendToShard(ShardIndex shard, const WireHeader& header, absl::Span<const std::byte> payload,
                   Transport::SendDone done) override;
  void StepJudged(const StepVerdict&) override {}  // the trainer sees it in the norm
  kernels::OutgoingStores UpdateBegins(int64_t) override {
    return kernels::OutgoingStores::kDirect;
  }
  void UpdateEnds(double) override {}
  void SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) override;
  void SnapshotDeclined(uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                        const std::string& message) override;

  void FailBecauseOf(Rank rank, absl::Status why);
  std::string NameOfRank(Rank rank) const;
  std::string NameOfChunk(ChunkId chunk) const;
  std::string NameOfMissing(int64_t version) const;
  std::string NameOfUnanswered() const;
  std::string NameOfMissingChunk(std::optional<ChunkId> chunk) const;
  std::optional<ChunkId> FirstChunkBehind(int64_t version) const;

  const Options options_;
  const v1::JobPlan& plan_;
  const bool has_loss_scale_;
  const bool judged_;
  const ChunkTrace trace_;  // of sums; values that are passed on are not traced
  NumberedVector<ChunkId, int> place_in_order_;  // low: read first by a forward
  std::shared_ptr<Slab> slab_;                   // memory for received sums
  VersionBoard board_;

  // Written before the thread reads them: by Open() on the thread, and by Connect(), which then
  // sets `connecting_`.
  std::string address_;
  std::vector<std::string> addresses_;
  int64_t total_steps_ = 0;
  std::atomic<bool> connecting_ = false;

  // Used only by the communication thread.
  Transport* transport_ = nullptr;
  LinkCredentials credentials_;
  NumberedVector<Rank, PeerId> peers_;
  NumberedVector<Rank, std::atomic<bool>> hello_;  // other threads read it to name silent ranks
  bool joined_ = false;  // Connect() was called: peers of higher ranks are connected
  bool open_ = false;    // all peers have said HELLO
  NumberedVector<ChunkId, Chunk> chunks_;
  SendQueue to_next_;
  CreditWaits waits_;
  int64_t enqueued_ = 0;                                  // number of chunks so far
  std::optional<LinkMetrics> next_link_, previous_link_;  // only with more than one rank

  CommunicationThread thread_;  // last: it uses all of the above
};

}  // namespace muster
