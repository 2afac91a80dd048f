// The exchange with parameter servers: sends gradients and receives parameters.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/codec/codec.h"
#include "lib/exchange/chunk_trace.h"
#include "lib/exchange/communication_thread.h"
#include "lib/exchange/credit_waits.h"
#include "lib/exchange/exchange_metrics.h"
#include "lib/exchange/gradient_exchange.h"
#include "lib/exchange/send_queue.h"
#include "lib/exchange/send_window.h"
#include "lib/exchange/version_board.h"
#include "lib/limits/limits.h"
#include "lib/plan/numbers.h"
#include "lib/shard/gate/round_schedule.h"
#include "lib/transport/core/shared_slab.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Owns the communication thread. The thread owns the transport and the connections to all shards of
// the plan. It greets the shards, fetches every chunk at plan.first_step, and then sends gradients
// as they become final. On each link, chunks that the next forward reads first are sent first,
// within a credit of bytes. Frozen parameters are only fetched.
//
// The communication thread packs a gradient (lib/codec) when its turn has come. It also widens
// values that travel in 16 bits into the parameter, unless they stay narrow. Values and gradients
// that travel as f32 are sent from and received into their own memory.
//
// A job with model.external has its values in two sets of memory: those of even versions and those
// of odd ones. So a program can read version v while version v + 1 arrives.
//
// A local_sgd job pushes values and optimizer slots, from the memory that the answer is
// written to. Push(chunk, v) says that a chunk, possibly of a slot, is scaled by the worker's share
// and ready to be summed. The version after v is the end of the round.
class PsExchange : public GradientExchange, private CommunicationThread::Work {
 public:
  struct Options {
    std::shared_ptr<const v1::JobPlan> plan;
    Rank rank{};
    TransportFactory transport;  // called on the communication thread

    // One f32[elements] per parameter. These and `memory` must outlive the exchange.
    std::vector<absl::Span<float>> parameters;
    // If not empty: version v is received here if v is odd, else into `parameters`. A frozen
    // parameter is received once, into the set of plan.first_step.
    std::vector<absl::Span<float>> odd_parameters;
    std::vector<absl::Span<float>> gradients;           // empty for local_sgd
    std::vector<std::vector<absl::Span<float>>> slots;  // local_sgd only: by slot - 1, by parameter
    // Whether a parameter's 16-bit values stay narrow, for devices that compute with them
    // (Executor::Options::narrow_parameters). They are received at the beginning of the parameter's
    // memory. Empty: no parameter. Not for local_sgd.
    std::vector<bool> narrow_parameters;
    // The memory of the tensors above, which is registered with the transport.
    std::vector<absl::Span<std::byte>> memory;

    ExchangeTuning tuning;
    absl::Duration hello_timeout = limits::kHelloWaitMax;
    absl::Duration answer_timeout = limits::kAnswerWaitMax;  // may be infinite
    // Called after the first failure, on the thread that found it, without a lock. May be null.
    std::function<void()> on_failure = nullptr;

    ExchangeMetrics* metrics = nullptr;
  };

  // Facts about a gradient that a worker of a job with model.external sends with it.
  struct PushTerms {
    double learning_rate = 0;  // of the parameter, in this step
    float weight = 0;          // of this worker's samples; the gradient is multiplied by it
    bool has_gradient = true;  // false: the memory of the gradient is not read
  };

  // Returns INVALID_ARGUMENT if the plan has no shards or its chunks do not cover its parameters,
  // RESOURCE_EXHAUSTED if there is no memory for packed gradients and narrow values.
  static absl::StatusOr<std::unique_ptr<PsExchange>> Create(Options options);
  ~PsExchange() override;  // joins the thread; drops transfers under way

  // Starts the thread and blocks until every shard has answered HELLO.
  absl::Status Connect(int64_t total_steps, std::vector<std::string> addresses) override;
  bool HasParameter(int parameter, int64_t version) const override {
    return board_.HasParameter(parameter, version);
  }
  absl::Status AwaitParameter(int parameter, int64_t version) override;
  absl::Status AwaitVersion(int64_t version) override;
  absl::StatusOr<float> AwaitLossScale(int64_t version) override;
  absl::Status AwaitAnswers() override;
  absl::Status Push(ChunkId chunk, int64_t version) override;
  // Pushes as above, with terms. Requires: the job has model.external.
  absl::Status Push(ChunkId chunk, int64_t version, const PushTerms& terms);
  bool overtaken() const override { return board_.overtaken(); }
  absl::StatusOr<int64_t> CatchUp() override;
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

  // The failure, or OK.
  absl::Status failure() const { return board_.failure(); }
  // Used by a wrapper of this exchange: makes `change`, or waits until `reached` or a failure. See
  // VersionBoard.
  void Change(absl::FunctionRef<void()> change) { board_.Change(change); }
  absl::Status AwaitChange(absl::FunctionRef<bool()> reached, VersionBoard::Missing missing) {
    return board_.AwaitChange(reached, missing);
  }

 private:
  // Changed only by the communication thread. Other threads read the const members, the two atomics
  // to name what they wait for, and `squares` of a version that the board has.
  struct Chunk {
    std::atomic<int64_t> version;
    std::atomic<int64_t> awaited = -1;  // requested version that is not here yet; -1: none
    bool sending = false;
    PushTerms terms;                     // of the push under way, written before it is posted
    int64_t ticket = 0;                  // of the push under way, see SendWindow
    int64_t ready_time = 0;              // when it joined its link's queue, Trace::Now()
    int64_t asked_time = 0;              // when its values were requested, by a push or a fetch
    std::array<double, 2> squares = {};  // of the gradient that led to versions 2n and 2n + 1

    int64_t urgency = 0;  // its place in the order of the forward pass; const from here on
    WireFormat push_format, values_format;
    std::unique_ptr<ChunkEncoder> encoder;  // null: sent without packing
    absl::Span<std::byte> packed;           // memory for the packed gradient
    absl::Span<std::byte> narrow;           // memory for values that are widened afterwards
  };
  struct Link {  // to a shard
    PeerId peer = PeerId::kNone;
    uint64_t session = 0;
    SendQueue queue;
    LinkMetrics metrics;
    prometheus::Histogram* pull_duration = nullptr;  // of the link's transport
  };

  explicit PsExchange(Options options);
  absl::Status AllocatePayloads();

  // CommunicationThread::Work.
  absl::Status Open(Transport& transport) override;
  void Turn(absl::Span<const ChunkId> posted) override;
  void Closing() override {}

  void Enqueue(absl::Span<const ChunkId> chunks);
  void SendReady();
  Link* MostUrgentLink();
  void SendPush(Link& link, const SendQueue::Entry& entry);
  void Sent(ChunkId chunk, const absl::Status& status);
  bool Wants(const Chunk& chunk, int64_t version) const;
  absl::Status TakeValues(ChunkId chunk, int64_t version, absl::Span<const std::byte> payload);
  void Answered(ChunkId chunk);
  void FetchWhatIsBehind();
  WireHeader HeaderOf(MessageKind kind, ChunkId chunk, int64_t step) const;
  bool IsOurs(const Link& link, const WireHeader& header) const;

  std::optional<ShardIndex> SenderOf(PeerId from, const WireHeader& header);

  void PeerJoined(PeerId peer, const LinkIdentity&) override { transport_->Disconnect(peer); }
  PayloadPlace PlacePayload(PeerId from, const WireHeader& header) override;
  void Received(PeerId from, const WireHeader& header, absl::Span<const std::byte> payload,
                PayloadLease lease) override;
  void PayloadLost(PeerId from, const WireHeader& header) override;
  void PeerLost(PeerId peer, const absl::Status& why) override;
  void Greet(ShardIndex shard);
  void Greeted(ShardIndex shard);
  void Fetch(ChunkId chunk, int64_t version);
  void Refused(const WireHeader& header);
  bool TakeLossScale(const WireHeader& header);

  bool IsFrozen(ChunkId chunk) const { return board_.frozen(Planned(chunk).parameter()); }
  void FailBecauseOf(ShardIndex shard, absl::Status why);
  absl::Status ProtocolFault(ChunkId chunk, absl::string_view what) const;
  std::string NameOfShard(ShardIndex shard) const;
  std::string NameOfChunk(ChunkId chunk) const;
  std::string NameOfMissing(int64_t version) const;
  std::string NameOfUnanswered() const;
  std::string NameOfMissingChunk(std::optional<ChunkId> chunk) const;
  const v1::PlanChunk& Planned(ChunkId chunk) const { return plan_.chunks(ToInt(chunk)); }
  ShardIndex ShardOf(ChunkId chunk) const { return ShardIndex(Planned(chunk).shard()); }
  // Returns the first chunk, of one shard or of all, that has not reached `version`.
  std::optional<ChunkId> FirstChunkBehind(int64_t version,
                                          std::optional<ShardIndex> shard = std::nullopt) const;
  bool StaysNarrow(ChunkId chunk) const;
  bool IsWidened(ChunkId chunk) const;
  absl::Span<float> ValuesOf(ChunkId chunk, int64_t version) const;
  absl::Span<std::byte> NarrowValuesOf(ChunkId chunk) const;
  absl::Span<const float> PushedOf(ChunkId chunk) const;

  const Options options_;
  const v1::JobPlan& plan_;
  const ChunkTrace trace_;
  const bool has_loss_scale_;
  const bool may_be_overtaken_;
  const bool averages_;                   // in local_sgd
  const bool has_terms_;                  // pushes have terms, with model.external
  RoundSchedule rounds_;                  // its total_steps come with Connect()
  std::shared_ptr<SharedSlab> payloads_;  // packed gradients and narrow values
  VersionBoard board_;

  // Used only by the communication thread.
  Transport* transport_ = nullptr;
  NumberedVector<ShardIndex, Link> links_;
  NumberedVector<ChunkId, Chunk> chunks_;
  int64_t values_bytes_ = 0;  // of all chunks, on the wire
  // Other threads read it to name silent shards.
  NumberedVector<ShardIndex, std::atomic<bool>> greeted_;
  int greetings_ = 0;
  CreditWaits waits_;  // over all queues
  SendWindow window_;  // over all links with a credit
  int64_t pushes_taken_ = 0;

  CommunicationThread thread_;  // last: it uses all of the above
};

}  // namespace muster
