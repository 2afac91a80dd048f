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
class RingExchange : public GradientExchange,
                     private CommunicationThread::Work,
                     private ShardOutput {
 public:
  struct Options {
    std::shared_ptr<const v1::JobPlan> plan;
    Rank rank{};
    TransportFactory transport;    // called on the communication thread
    WorkerShard* shard = nullptr;  // of this rank; outlives the exchange

    // By parameter, f32[elements], host memory that outlives the exchange. Sums are made in the
    // gradients' memory.
    std::vector<absl::Span<float>> parameters;
    std::vector<absl::Span<float>> gradients;
    std::vector<absl::Span<std::byte>> memory;  // what holds them, to be registered

    ExchangeTuning tuning;
    absl::Duration hello_timeout = limits::kHelloWaitMax;  // said after the neighbour's own Start
    absl::Duration answer_timeout = limits::kAnswerWaitMax;

    ExchangeMetrics* metrics = nullptr;
  };

  // Opens the transport, so that address() is known (a ring of one sleeps on it). INVALID_ARGUMENT
  // when the plan's chunks do not cut its parameters or its shards are not its workers'; the
  // transport's error.
  static absl::StatusOr<std::unique_ptr<RingExchange>> Create(Options options);
  ~RingExchange() override;  // joins the thread; drops what is in flight

  // `addresses`: of all shards. Waits until both neighbours have said HELLO.
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
  // The sum of the ranks before this one, of step `sum_step`.
  enum class Incoming : uint8_t { kAwaited, kPlacing, kHere };
  // Of the communication thread alone, but for what others read to name what they wait for:
  // `version` and `answered`.
  struct Chunk {
    std::atomic<int64_t> version;  // of the values here
    bool pushed = false;           // this worker's gradient of step `version` waits for the sum
    Incoming incoming = Incoming::kAwaited;
    int64_t sum_step = 0;
    float* slab = nullptr;                // f32[elements]; null where no sum comes in
    const float* sum = nullptr;           // in the slab, or lent
    PayloadLease lease;                   // of what is lent
    bool sending_sum = false;             // or waiting to be sent
    bool sending_value = false;           // likewise
    std::array<int64_t, 2> ready_time{};  // since when, by Payload
    std::atomic<bool> answered = true;    // the values have `version`, and everybody may know
    std::array<double, 2> squares = {};   // of the gradient that led to versions 2n and 2n + 1
    float loss_scale = 0;                 // that came with the value
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

  // ShardOutput: the shard believes to have one worker, rank 0.
  void SendTo(Rank rank, const WireHeader& header, absl::Span<const std::byte> payload,
              Transport::SendDone done) override;
  void SendToShard(ShardIndex shard, const WireHeader& header, absl::Span<const std::byte> payload,
                   Transport::SendDone done) override;
  void StepJudged(const StepVerdict&) override {}  // the trainer sees it by the norm
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
  const ChunkTrace trace_;                       // of sums; values pass on unseen
  NumberedVector<ChunkId, int> place_in_order_;  // those that a forward reads first are low
  std::shared_ptr<Slab> slab_;                   // where sums come in
  VersionBoard board_;

  // Written before the thread reads them: by Open() on it, and by Connect(), which then sets
  // `connecting_`.
  std::string address_;
  std::vector<std::string> addresses_;
  int64_t total_steps_ = 0;
  std::atomic<bool> connecting_ = false;

  // The communication thread's.
  Transport* transport_ = nullptr;
  LinkCredentials credentials_;
  NumberedVector<Rank, PeerId> peers_;
  NumberedVector<Rank, std::atomic<bool>> hello_;  // read by others to name who has not said it
  bool joined_ = false;  // Connect() was called: peers of higher ranks are connected to
  bool open_ = false;    // all have said HELLO
  NumberedVector<ChunkId, Chunk> chunks_;
  SendQueue to_next_;
  CreditWaits waits_;
  int64_t enqueued_ = 0;                                  // chunks, so far
  std::optional<LinkMetrics> next_link_, previous_link_;  // of a ring of more than one

  CommunicationThread thread_;  // last: it uses all of the above
};

}  // namespace muster
