#include "cli/commands/bench_worker.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "lib/codec/codec.h"
#include "lib/fleet/daemon.h"
#include "lib/fleet/fleet_client.h"
#include "lib/limits/limits.h"
#include "lib/shard/chunks/plan_credentials.h"
#include "lib/status/status.h"
#include "lib/transport/core/shared_slab.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "lib/transport/tcp/data_port.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster::cli {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);
constexpr absl::Duration kDetachMax = absl::Seconds(2);
constexpr int64_t kAlignment = 64;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The worker as the control plane sees it: prepared as soon as it has a plan, running from Start
// on. Thread-safe.
class BenchMember : public FleetMember {
 public:
  explicit BenchMember(std::string name) : name_(std::move(name)) {}

  std::vector<v1::JobReport> Report() override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (plan_ == nullptr) return {};
    v1::JobReport report;
    report.set_job(plan_->job());
    report.set_generation(plan_->generation());
    report.set_state(started_ ? v1::MEMBER_RUNNING : v1::MEMBER_PREPARED);
    report.mutable_dataset()->set_samples(plan_->spec().data().synthetic().samples());
    report.set_next_step(plan_->first_step());
    return {std::move(report)};
  }

  void Handle(const v1::Directive& directive) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (directive.has_prepare() && plan_ == nullptr) {
      plan_ = std::make_shared<const v1::JobPlan>(directive.prepare().plan());
    } else if (plan_ != nullptr && directive.job() == plan_->job() &&
               directive.generation() == plan_->generation()) {
      started_ |= directive.has_start();
      released_ |= directive.has_release();
    }
  }

  void CoordinatorLost() override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    released_ = true;
  }

  absl::StatusOr<std::shared_ptr<const v1::JobPlan>> AwaitStart() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    auto decided = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return started_ || released_; };
    if (!mu_.AwaitWithTimeout(absl::Condition(&decided), kPatience)) {
      return absl::DeadlineExceededError(
          absl::StrCat(name_, ": no job was started within ", absl::FormatDuration(kPatience)));
    }
    if (released_) return absl::CancelledError(absl::StrCat(name_, ": the job was released"));
    return plan_;
  }

  bool released() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return released_;
  }

 private:
  const std::string name_;
  mutable absl::Mutex mu_;
  std::shared_ptr<const v1::JobPlan> plan_ ABSL_GUARDED_BY(mu_);
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool released_ ABSL_GUARDED_BY(mu_) = false;
};

// The data plane of the worker. Used by one thread. The first failure is final.
class PushLoop : private MessageReceiver {
 public:
  static absl::StatusOr<std::unique_ptr<PushLoop>> Create(std::shared_ptr<const v1::JobPlan> plan,
                                                          const BenchWorkerOptions& options,
                                                          const BenchMember* member) {
    std::unique_ptr<PushLoop> loop(new PushLoop(std::move(plan), options.member, member));
    RETURN_IF_ERROR(loop->Open(options));
    return loop;
  }

  ~PushLoop() override {
    gradient_registration_.reset();
    value_registration_.reset();
    transport_.reset();  // makes no more calls; the slabs must outlive it
  }

  // Runs `steps` steps with all chunks in flight.
  absl::Status Stream(int64_t steps) {
    Begin(steps);
    for (int c = 0; c < std::ssize(chunks_); ++c) PushNext(c);
    return Finish();
  }

  // Runs one step, one chunk at a time, and appends the time of each chunk to `times`.
  absl::Status OneByOne(std::vector<absl::Duration>& times) {
    Begin(1);
    for (int c = 0; c < std::ssize(chunks_); ++c) {
      const absl::Time begin = absl::Now();
      PushNext(c);
      RETURN_IF_ERROR(ProgressUntil([&] { return chunks_[c].version == end_; }));
      times.push_back(absl::Now() - begin);
    }
    return Finish();
  }

  std::string transport() const { return transport_->name(); }

 private:
  struct Chunk {
    int shard = 0;
    int64_t version = -1;
    int64_t pushed = -1;   // last step that was pushed
    bool sending = false;  // its push is being sent
    WireFormat push;
    absl::Span<const std::byte> payload;
    absl::Span<std::byte> values;
  };
  struct Link {
    PeerId peer = PeerId::kNone;
    bool greeted = false;
    int64_t bytes_sending = 0;
    int64_t credit = 0;
    std::deque<int> ready;  // chunks that wait for credit
  };

  PushLoop(std::shared_ptr<const v1::JobPlan> plan, const std::string& name,
           const BenchMember* member)
      : plan_(std::move(plan)), member_(member), links_(plan_->shards_size()) {
    const auto self = std::ranges::find(plan_->workers(), name, &v1::PlanWorker::member);
    rank_ = static_cast<uint32_t>(self - plan_->workers().begin());
    end_ = plan_->first_step();
  }

  absl::Status Open(const BenchWorkerOptions& options) {
    if (rank_ >= static_cast<uint32_t>(plan_->workers_size())) {
      return absl::FailedPreconditionError(
          absl::StrCat("the plan of ", plan_->job(), " has no worker ", options.member));
    }
    RETURN_IF_ERROR(MakeChunks());
    // Loopback is enough, because the ps are on this machine.
    ASSIGN_OR_RETURN(std::shared_ptr<DataPort> port, DataPort::Open({.bind_host = "127.0.0.1"}));
    ASSIGN_OR_RETURN(transport_,
                     RoutingTransport::Create(
                         {.links = options.links,
                          .polling = PollingOf(options.poll, /*busy_threads=*/0, /*pollers=*/1),
                          .port = std::move(port)}));
    transport_->SetReceiver(this);
    ASSIGN_OR_RETURN(gradient_registration_, transport_->RegisterMemory(gradients_->memory()));
    ASSIGN_OR_RETURN(value_registration_, transport_->RegisterMemory(values_->memory()));
    return Greet();
  }

  // Encodes the gradients once, because all steps push the same payloads.
  absl::Status MakeChunks() {
    int64_t payload_bytes = 0, value_bytes = 0;
    for (int c = 0; c < plan_->chunks_size(); ++c) {
      Chunk& chunk = chunks_.emplace_back();
      chunk.shard = plan_->chunks(c).shard();
      chunk.push = PushFormat(*plan_, ChunkId(c));
      payload_bytes += Aligned(chunk.push.bytes);
      value_bytes += Aligned(ValuesFormat(*plan_, ChunkId(c)).bytes);
    }
    ASSIGN_OR_RETURN(gradients_, SharedSlab::Allocate(payload_bytes));
    ASSIGN_OR_RETURN(values_, SharedSlab::Allocate(value_bytes));
    absl::Span<std::byte> payloads = gradients_->memory(), values = values_->memory();
    std::mt19937 random(rank_);
    std::normal_distribution<float> normal;
    for (int c = 0; c < plan_->chunks_size(); ++c) {
      Chunk& chunk = chunks_[c];
      std::vector<float> gradient(plan_->chunks(c).elements());
      for (float& element : gradient) element = normal(random);
      ChunkEncoder::Create(chunk.push, /*seed=*/c)
          ->Encode(gradient, payloads.first(chunk.push.bytes));
      chunk.payload = payloads.first(chunk.push.bytes);
      payloads.remove_prefix(Aligned(chunk.push.bytes));
      const int64_t bytes = ValuesFormat(*plan_, ChunkId(c)).bytes;
      chunk.values = values.first(bytes);
      values.remove_prefix(Aligned(bytes));
    }
    return absl::OkStatus();
  }

  // Sends HELLO to all shards, then fetches every chunk.
  absl::Status Greet() {
    for (int shard = 0; shard < plan_->shards_size(); ++shard) {
      const uint64_t session = SessionOf(*plan_, ShardIndex(shard));
      ASSIGN_OR_RETURN(const LinkCredentials credentials,
                       CredentialsFor(session, *plan_, Rank(rank_)));
      ASSIGN_OR_RETURN(links_[shard].peer,
                       transport_->Connect(plan_->shards(shard).address(), credentials));
      links_[shard].credit = CreditOf(transport_->Describe(links_[shard].peer));
      WireHeader hello = HeaderOf(MessageKind::kHello, shard, plan_->first_step());
      hello.chunk = static_cast<uint32_t>(shard);
      transport_->Send(links_[shard].peer, hello, {}, {});
    }
    RETURN_IF_ERROR(ProgressUntil(
        [this] { return std::ranges::all_of(links_, [](const Link& l) { return l.greeted; }); }));
    Begin(0);
    for (int c = 0; c < std::ssize(chunks_); ++c) {
      transport_->Send(links_[chunks_[c].shard].peer,
                       HeaderOf(MessageKind::kFetch, chunks_[c].shard, plan_->first_step(), c), {},
                       {});
    }
    return Finish();
  }

  // Returns the bytes that may be in flight on a link, as for a real worker (see ExchangeTuning).
  int64_t CreditOf(const LinkDescription& link) const {
    if (link.transport == "shm") return std::numeric_limits<int64_t>::max();
    return std::max(limits::kInflightBytesMax, 2 * plan_->spec().chunk_bytes());
  }

  WireHeader HeaderOf(MessageKind kind, int shard, int64_t step, int chunk = 0) const {
    return {.kind = kind,
            .generation = plan_->generation(),
            .job = SessionOf(*plan_, ShardIndex(shard)),
            .step = step,
            .chunk = static_cast<uint32_t>(chunk),
            .rank = rank_};
  }

  void Begin(int64_t steps) {
    end_ += steps;
    unfinished_ = std::ssize(chunks_);
  }
  absl::Status Finish() {
    return ProgressUntil([this] { return unfinished_ == 0; });
  }

  template <typename Condition>
  absl::Status ProgressUntil(const Condition& condition) {
    while (failure_.ok() && !condition()) {
      if (transport_->Progress() > 0) continue;
      transport_->Wait(absl::Seconds(1));
      const absl::Time now = absl::Now();
      if (received_ != std::exchange(seen_, received_)) heard_ = now;
      // The coordinator's release and the time limit are checked only after a second without
      // messages.
      if (now - heard_ < absl::Seconds(1)) continue;
      if (member_->released()) Fail(absl::CancelledError("the job was released"));
      if (now - heard_ < kPatience) continue;
      Fail(absl::DeadlineExceededError(
          absl::StrCat("received nothing for ", absl::FormatDuration(kPatience), "; rank ", rank_,
                       " waits for version ", end_, " of ", plan_->job())));
    }
    return failure_;
  }

  void Fail(absl::Status why) {
    if (failure_.ok()) failure_ = std::move(why);
  }

  // Queues the next push of a chunk, if one is left and the previous one is complete.
  void PushNext(int c) {
    Chunk& chunk = chunks_[c];
    if (chunk.sending || chunk.version >= end_ || chunk.pushed >= chunk.version) return;
    chunk.pushed = chunk.version;
    chunk.sending = true;
    links_[chunk.shard].ready.push_back(c);
    SendReady(links_[chunk.shard]);
  }

  void SendReady(Link& link) {
    while (!link.ready.empty() && link.bytes_sending < link.credit) {
      const int c = link.ready.front();
      link.ready.pop_front();
      Chunk& chunk = chunks_[c];
      WireHeader header = HeaderOf(MessageKind::kPush, chunk.shard, chunk.pushed, c);
      header.dtype = chunk.push.dtype;
      header.codec = chunk.push.codec;
      header.length = chunk.payload.size();
      link.bytes_sending += static_cast<int64_t>(header.length);
      transport_->Send(link.peer, header, chunk.payload,
                       [this, c](const absl::Status& status) { Sent(c, status); });
    }
  }

  void Sent(int c, const absl::Status& status) {
    if (!status.ok()) return Fail(status);
    Chunk& chunk = chunks_[c];
    chunk.sending = false;
    Link& link = links_[chunk.shard];
    link.bytes_sending -= static_cast<int64_t>(chunk.payload.size());
    GoOn(c);
    SendReady(link);
  }

  // Called when a push was sent and when its answer arrives. The two may come in either order.
  void GoOn(int c) {
    const Chunk& chunk = chunks_[c];
    if (!chunk.sending && chunk.version == end_) --unfinished_;
    PushNext(c);
  }

  void PeerJoined(PeerId peer, const LinkIdentity&) override { transport_->Disconnect(peer); }

  PayloadPlace PlacePayload(PeerId, const WireHeader& header) override {
    if (header.kind != MessageKind::kParams || header.chunk >= chunks_.size()) return {};
    PayloadPlace place(chunks_[header.chunk].values);
    if (header.length != place.memory.size()) return {};
    // PsExchange chooses between the caches and memory by the same rule.
    place.past_caches = std::ssize(values_->memory()) >= PayloadPlace::kUncachedBytesMin;
    return place;
  }

  void Received(PeerId, const WireHeader& header, absl::Span<const std::byte>,
                PayloadLease) override {
    ++received_;
    if (header.kind == MessageKind::kHello && header.chunk < links_.size()) {
      links_[header.chunk].greeted = true;
    } else if (header.kind == MessageKind::kParams && header.chunk < chunks_.size()) {
      chunks_[header.chunk].version = header.step;
      GoOn(static_cast<int>(header.chunk));
    } else if (header.kind == MessageKind::kRefused) {
      Fail(absl::FailedPreconditionError(
          absl::StrCat("chunk ", header.chunk, " of step ", header.step,
                       " was refused: ", RefusalReasonName(header.reason))));
    }
  }

  void PayloadLost(PeerId, const WireHeader& header) override {
    Fail(absl::UnavailableError(
        absl::StrCat("the value of chunk ", header.chunk, " was lost in transfer")));
  }

  void PeerLost(PeerId peer, const absl::Status& why) override {
    const auto link = std::ranges::find(links_, peer, &Link::peer);
    const int64_t shard = link - links_.begin();
    if (shard == std::ssize(links_)) return;
    Fail(absl::UnavailableError(absl::StrCat("lost shard ", shard, " on ",
                                             plan_->shards(static_cast<int>(shard)).member(), ": ",
                                             why.message())));
  }

  const std::shared_ptr<const v1::JobPlan> plan_;
  const BenchMember* const member_;
  uint32_t rank_ = 0;
  std::vector<Chunk> chunks_;
  std::vector<Link> links_;
  std::shared_ptr<SharedSlab> gradients_, values_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Transport::MemoryRegistration> gradient_registration_, value_registration_;
  int64_t end_ = 0;         // the version that all chunks should reach
  int64_t unfinished_ = 0;  // chunks below it, or with a push in progress
  int64_t received_ = 0;    // number of messages
  int64_t seen_ = 0;        // value of received_ when heard_ was checked
  absl::Time heard_ = absl::Now();
  absl::Status failure_;
};

// Requires: `times` is not empty.
absl::Duration Median(std::vector<absl::Duration> times) {
  std::ranges::sort(times);
  return times[times.size() / 2];
}

absl::StatusOr<BenchWorkerResult> Measure(const BenchWorkerOptions& options,
                                          const BenchMember& member,
                                          std::shared_ptr<const v1::JobPlan> plan) {
  ASSIGN_OR_RETURN(const auto loop, PushLoop::Create(std::move(plan), options, &member));
  BenchWorkerResult result;
  RETURN_IF_ERROR(loop->Stream(options.steps));
  for (int round = 0; round < options.rounds; ++round) {
    const absl::Time begin = absl::Now();
    RETURN_IF_ERROR(loop->Stream(options.steps));
    result.rounds.push_back(absl::Now() - begin);
  }
  std::vector<absl::Duration> round_trips;
  for (int64_t step = 0; step < options.lone_steps; ++step) {
    RETURN_IF_ERROR(loop->OneByOne(round_trips));
  }
  if (!round_trips.empty()) result.round_trip = Median(std::move(round_trips));
  result.transport = loop->transport();
  return result;
}

}  // namespace

absl::StatusOr<BenchWorkerResult> RunBenchWorker(const BenchWorkerOptions& options) {
  BenchMember member(options.member);
  v1::Hello hello = Introduce(v1::WORKER, options.member);
  hello.add_devices("none");
  FleetClient client({.coordinator = options.coordinator, .hello = std::move(hello)}, &member);
  ASSIGN_OR_RETURN(auto plan, member.AwaitStart());
  absl::StatusOr<BenchWorkerResult> result = Measure(options, member, std::move(plan));
  client.Detach(kDetachMax);
  return result;
}

}  // namespace muster::cli
