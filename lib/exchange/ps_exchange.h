// The exchange with parameter servers: gradients out, parameters in.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
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
#include "lib/codec/codec.h"
#include "lib/exchange/chunk_trace.h"
#include "lib/exchange/exchange_metrics.h"
#include "lib/exchange/gradient_exchange.h"
#include "lib/exchange/send_queue.h"
#include "lib/exchange/send_window.h"
#include "lib/transport/session.h"
#include "lib/transport/shared_slab.h"
#include "lib/transport/transport.h"
#include "lib/transport/wire.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Owns the communication thread, which owns the transport and the connections to all shards of the
// plan, greets them, fetches every chunk at plan.first_step, and from then on sends gradients as
// they become final: over each link those that the next forward reads first go first, under a
// credit of bytes. Frozen parameters are fetched and that is all.
//
// A gradient is packed (lib/codec) on the communication thread when its turn has come, and a value
// that travels in 16 bits is widened into the parameter there. What travels as f32 is sent from and
// received into the memory where it belongs.
//
// Of a local_sgd job values and optimizer slots are what is pushed, from the memory that the answer
// goes to: Push(chunk, v) says that a chunk, which may be that of a slot, is scaled by the worker's
// share and ready to be summed, and the version after v is that of the round's end.
class PsExchange : public GradientExchange, private MessageReceiver {
 public:
  struct Options {
    std::shared_ptr<const v1::JobPlan> plan;
    int rank = 0;
    TransportFactory transport;  // called on the communication thread

    // By parameter, f32[elements]. These and `memory` outlive the exchange.
    std::vector<absl::Span<float>> parameters;
    std::vector<absl::Span<float>> gradients;           // none for local_sgd
    std::vector<std::vector<absl::Span<float>>> slots;  // local_sgd: by slot - 1, by parameter
    // What holds the tensors above: registered with the transport.
    std::vector<absl::Span<std::byte>> memory;

    ExchangeTuning tuning;
    absl::Duration hello_timeout = absl::Seconds(10);
    // The last resort: a lost peer is noticed by the transport or the coordinator long before, and
    // other workers may be slow.
    absl::Duration answer_timeout = absl::Minutes(10);

    ExchangeMetrics* metrics = nullptr;
  };

  // INVALID_ARGUMENT when the plan's chunks do not cut its parameters, RESOURCE_EXHAUSTED when
  // there is no memory for packed gradients.
  static absl::StatusOr<std::unique_ptr<PsExchange>> Create(Options options);
  ~PsExchange() override;  // joins the thread; drops what is in flight

  // Starts the thread and waits until every shard has answered HELLO.
  absl::Status Connect(int64_t total_steps, std::vector<std::string> addresses) override
      ABSL_LOCKS_EXCLUDED(mu_);
  bool HasParameter(int parameter, int64_t version) const override;
  absl::Status AwaitParameter(int parameter, int64_t version) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AwaitVersion(int64_t version) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<float> AwaitLossScale(int64_t version) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AwaitAnswers() override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Push(int chunk, int64_t version) override ABSL_LOCKS_EXCLUDED(mu_);
  bool overtaken() const override { return overtaken_.load(std::memory_order_acquire); }
  absl::StatusOr<int64_t> CatchUp() override ABSL_LOCKS_EXCLUDED(mu_);
  int64_t version() const override { return version_.load(std::memory_order_acquire); }
  double GradientNorm(int64_t version) const override;
  void Interrupt() override ABSL_LOCKS_EXCLUDED(mu_);
  void Fail(absl::Status why) override ABSL_LOCKS_EXCLUDED(mu_);
  bool failed() const override { return failed_.load(std::memory_order_acquire); }
  int64_t step() const override { return std::max(version(), plan_.first_step()); }
  std::string culprit() const override ABSL_LOCKS_EXCLUDED(mu_);

  // The failure; OK when there is none.
  absl::Status failure() const ABSL_LOCKS_EXCLUDED(mu_);
  // The version that a push turns `version` into: the next one, or that of the end of its round.
  int64_t VersionAfter(int64_t version) const;

 private:
  static constexpr int64_t kEveryVersion = std::numeric_limits<int64_t>::max();  // of frozen ones

  // Of the communication thread alone, but for what is const and `version`.
  struct Chunk {
    std::atomic<int64_t> version;  // read by others to name what they wait for
    int64_t awaited = -1;          // version asked for and not here yet; -1: none
    bool sending = false;
    int64_t ticket = 0;                  // of the push that is being sent, see SendWindow
    int64_t ready_time = 0;              // when it joined its link's queue, Trace::Now()
    std::array<double, 2> squares = {};  // of the gradient that led to versions 2n and 2n + 1

    bool frozen = false;  // const from here on
    int64_t urgency = 0;  // its place in the order of the forward pass
    WireFormat push_format, values_format;
    std::unique_ptr<ChunkEncoder> encoder;  // null: sent as it is
    absl::Span<std::byte> packed;           // where it packs to
    absl::Span<std::byte> narrow;           // where values arrive that are not f32
  };
  struct Link {  // to a shard
    PeerId peer = PeerId::kNone;
    SendQueue queue;
    LinkMetrics metrics;
  };

  explicit PsExchange(Options options);
  absl::Status AllocatePayloads();

  void Serve();
  absl::Status Open();
  void TakePushed() ABSL_LOCKS_EXCLUDED(mu_);
  void SendReady();
  Link* MostUrgentLink();
  void SendPush(Link& link, const SendQueue::Entry& entry);
  void Sent(int chunk, const absl::Status& status);
  bool Wants(const Chunk& chunk, int64_t version) const;
  absl::Status TakeValues(int chunk, absl::Span<const std::byte> payload);
  void Answered(int chunk);
  void ParameterIsBehindNoMore(int parameter) ABSL_LOCKS_EXCLUDED(mu_);
  void AnswerIsIn() ABSL_LOCKS_EXCLUDED(mu_);
  void FetchWhatIsBehind() ABSL_LOCKS_EXCLUDED(mu_);
  void HaveCaughtUp(int64_t version) ABSL_LOCKS_EXCLUDED(mu_);
  WireHeader HeaderOf(MessageKind kind, int chunk, int64_t step) const;
  bool IsOurs(const WireHeader& header) const;

  int SenderOf(PeerId from, const WireHeader& header);

  void PeerJoined(PeerId peer, const LinkIdentity&) override { transport_->Disconnect(peer); }
  PayloadPlace PlacePayload(PeerId from, const WireHeader& header) override;
  void Received(PeerId from, const WireHeader& header, absl::Span<const std::byte> payload,
                PayloadLease lease) override;
  void PayloadLost(PeerId from, const WireHeader& header) override;
  void PeerLost(PeerId peer, const absl::Status& why) override;
  void Greet(int shard);
  void Greeted(int shard) ABSL_LOCKS_EXCLUDED(mu_);
  void Fetch(int chunk, int64_t version);
  void Refused(const WireHeader& header);
  bool TakeLossScale(const WireHeader& header) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Status Await(absl::FunctionRef<bool()> reached, int64_t version) ABSL_LOCKS_EXCLUDED(mu_);
  void SetFailure(absl::Status why, absl::string_view culprit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FailBecauseOf(int shard, absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status ProtocolFault(int chunk, absl::string_view what) const;
  std::string NameOfShard(int shard) const;
  std::string NameOfChunk(int chunk) const;
  int ShardOf(int chunk) const { return plan_.chunks(chunk).shard(); }
  int FirstChunkBehind(int64_t version, int shard) const;
  absl::Span<float> ValuesOf(int chunk) const;
  absl::Span<const float> PushedOf(int chunk) const;

  const Options options_;
  const v1::JobPlan& plan_;
  const ChunkTrace trace_;
  const bool has_loss_scale_;
  const bool may_be_overtaken_;
  const bool averages_;  // local_sgd
  int64_t total_steps_ = 0;
  std::vector<std::vector<int>> chunks_of_parameter_;
  int trained_ = 0;                       // parameters that are not frozen
  std::shared_ptr<SharedSlab> payloads_;  // packed gradients and narrow values

  // The communication thread's.
  std::unique_ptr<Transport> transport_;
  std::vector<std::unique_ptr<Transport::MemoryRegistration>> registrations_;
  std::vector<Link> links_;  // by shard
  std::vector<Chunk> chunks_;
  std::vector<int> unanswered_;  // by parameter: chunks
  int parameters_behind_;        // that do not have the version after version() yet
  int waiting_chunks_ = 0;       // in all queues
  SendWindow window_;            // over all links that have a credit
  int64_t pushes_taken_ = 0;
  std::vector<int> taken_;  // chunks from pushed_, being looked at

  std::vector<std::atomic<int64_t>> parameter_versions_;
  std::atomic<int64_t> version_;
  std::atomic<int64_t> chunks_awaited_;  // pushed or fetched and not answered
  std::atomic<bool> posted_ = false;     // spares the thread the lock: pushed_ is not empty
  std::atomic<bool> overtaken_ = false;
  std::atomic<bool> catching_up_ = false;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> closing_ = false;

  mutable absl::Mutex mu_;
  Transport* waking_ ABSL_GUARDED_BY(mu_) = nullptr;  // transport_, while it may be woken
  std::vector<int> pushed_ ABSL_GUARDED_BY(mu_);      // chunks whose gradients are final
  std::vector<bool> greeted_ ABSL_GUARDED_BY(mu_);    // by shard
  int greetings_ ABSL_GUARDED_BY(mu_) = 0;
  float loss_scale_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t loss_scale_version_ ABSL_GUARDED_BY(mu_);  // whose it is
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::string culprit_ ABSL_GUARDED_BY(mu_);

  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace muster
