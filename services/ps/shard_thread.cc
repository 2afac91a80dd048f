#include "services/ps/shard_thread.h"

#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "lib/cluster/limits.h"
#include "lib/cluster/parameter_table.h"
#include "lib/shard/gradient_squares.h"
#include "lib/status/status.h"
#include "services/ps/update_timer.h"

namespace muster {
namespace {

constexpr absl::Duration kWaitMax = absl::Seconds(10);  // everything that matters wakes us
constexpr size_t kUnplacedMax =
    1024;  // refusals in one turn; repeated and late pushes are all answered
constexpr size_t kTokenBytes = GradientSquares::kTokenBytes;
// Payloads of HELLO take turns in these: one that is overwritten by a flood of others has a wrong
// token, no more.
constexpr size_t kHelloBytesMax = 8 << 10;
constexpr size_t kHelloPayloads = 64;

using Registrations = std::vector<std::unique_ptr<Transport::MemoryRegistration>>;

// Takes as long for every wrong token.
bool SameToken(absl::string_view a, absl::string_view b) {
  unsigned char difference = a.size() != b.size();
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

// What one shard of a job says to another: numbers with a place of their own, and short decisions
// of shard 0.
bool IsReport(MessageKind kind) {
  using enum MessageKind;
  return kind == kSquares || kind == kArrived || kind == kNorms || kind == kTrust;
}
bool IsDecision(MessageKind kind) {
  return kind == MessageKind::kVerdict || kind == MessageKind::kClosed;
}

// Whether a payload begins with the plan's session token.
bool HasToken(absl::Span<const std::byte> payload, const v1::JobPlan& plan) {
  const absl::string_view text(reinterpret_cast<const char*>(payload.data()), payload.size());
  return SameToken(text.substr(0, kTokenBytes), plan.session_token());
}

}  // namespace

class ShardThread::Tenant : public ShardOutput {
 public:
  Tenant(ShardThread* thread, std::unique_ptr<ParameterShard> shard, ShardListener* listener,
         ShardProgress* progress, Registrations registrations, std::vector<PeerId> shards)
      : thread_(thread),
        shard_(std::move(shard)),
        listener_(listener),
        progress_(progress),
        registrations_(std::move(registrations)),
        workers_(shard_->plan().workers_size()),
        shards_(std::move(shards)) {
    shard_->set_output(this);
    PublishVersion();
  }

  ~Tenant() override {
    const int number = shard_->shard();
    registrations_.clear();
    shard_.reset();
    listener_->ShardReleased(number);
  }

  ParameterShard& shard() { return *shard_; }
  ShardListener& listener() { return *listener_; }
  const v1::JobPlan& plan() const { return shard_->plan(); }
  bool retired() const { return retired_; }
  void Retire() {
    retired_ = true;
    shard_->Retire();
  }

  bool Is(uint64_t job, uint32_t generation) const {
    return plan().job_number() == job && plan().generation() == generation;
  }
  bool HasRank(uint32_t rank) const { return rank < workers_.size(); }
  bool Greeted(uint32_t rank) const {
    return HasRank(rank) && workers_[rank].peer != PeerId::kNone;
  }

  // Connects back to a worker that said HELLO, again if it moved.
  absl::Status Connect(uint32_t rank, absl::string_view address) {
    Worker& worker = workers_[rank];
    if (worker.peer != PeerId::kNone && worker.address == address) return absl::OkStatus();
    absl::StatusOr<PeerId> peer = thread_->transport_->Connect(address);
    if (!peer.ok()) return peer.status();
    Disconnect(rank);
    worker = {*peer, std::string(address)};
    if (thread_->transport_->Describe(*peer).shares_memory()) {
      update_timer_.set_values_are_read_in_place();
    }
    return absl::OkStatus();
  }

  void Disconnect(uint32_t rank) {
    Worker& worker = workers_[rank];
    if (worker.peer == PeerId::kNone) return;
    const PeerId peer = std::exchange(worker.peer, PeerId::kNone);
    shard_->RankLost(static_cast<int>(rank));
    thread_->transport_->Disconnect(peer);
  }

  void DisconnectShard(int other) {
    shard_->ShardLost(other);
    thread_->transport_->Disconnect(std::exchange(shards_[other], PeerId::kNone));
  }

  void DisconnectAll() {
    for (uint32_t rank = 0; rank < workers_.size(); ++rank) Disconnect(rank);
    for (int other = 0; other < std::ssize(shards_); ++other) {
      if (shards_[other] != PeerId::kNone) DisconnectShard(other);
    }
  }

  // The shard at `peer`; -1 if it is none of this tenant's.
  int ShardOf(PeerId peer) const {
    const auto found = std::find(shards_.begin(), shards_.end(), peer);
    return found == shards_.end() ? -1 : static_cast<int>(found - shards_.begin());
  }

  PeerId PeerOf(uint32_t rank) const { return workers_[rank].peer; }

  // The rank of `peer`; -1 if it is not of this tenant.
  int RankOf(PeerId peer) const {
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      if (workers_[rank].peer == peer) return static_cast<int>(rank);
    }
    return -1;
  }

  void SendTo(int rank, const WireHeader& header, absl::Span<const std::byte> payload,
              Transport::SendDone done) override {
    PublishVersion();
    const PeerId peer = workers_[rank].peer;
    if (peer == PeerId::kNone) {
      if (done) done(absl::UnavailableError("not connected"));
      return;
    }
    thread_->counts_.params_bytes.Add(static_cast<int64_t>(payload.size()));
    thread_->transport_->Send(peer, header, payload, std::move(done));
  }

  void SendToShard(int shard, const WireHeader& header, absl::Span<const std::byte> payload,
                   Transport::SendDone done) override {
    if (shards_[shard] == PeerId::kNone) return done(absl::UnavailableError("not connected"));
    thread_->transport_->Send(shards_[shard], header, payload, std::move(done));
  }

  void StepJudged(const StepVerdict& verdict) override {
    progress_->loss_scale.store(verdict.loss_scale, std::memory_order_relaxed);
    progress_->skips_in_row.store(verdict.skips_in_row, std::memory_order_relaxed);
    // By one shard, so that the sum over parameter servers is right.
    if (verdict.skipped && shard_->shard() == 0) thread_->metrics_->skipped_steps.Increment();
  }

  kernels::OutgoingStores UpdateBegins(int64_t elements) override {
    return update_timer_.Begin(elements);
  }

  void UpdateEnds(double sum_of_squares) override {
    const UpdateTimer::Sample sample = update_timer_.End();
    if (sample.updates > 0) {
      thread_->counts_.apply_duration.Observe(sample.nanoseconds, sample.updates);
    }
    if (!std::isfinite(sum_of_squares)) thread_->metrics_->nonfinite_gradients.Increment();
  }

  void StalePushApplied(int64_t staleness) override {
    thread_->counts_.push_staleness.Observe(staleness);
  }

  void SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) override {
    listener_->SnapshotTaken(std::move(snapshot));
  }

  void SnapshotDeclined(uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                        const std::string& message) override {
    listener_->SnapshotDeclined(shard_->shard(), id, step, outcome, message);
  }

 private:
  struct Worker {
    PeerId peer = PeerId::kNone;
    std::string address;
  };

  void PublishVersion() {
    progress_->lowest_version.store(shard_->lowest_version(), std::memory_order_relaxed);
    const int64_t late = shard_->late_pushes();
    if (late == late_pushes_) return;
    thread_->metrics_->late_pushes.Increment(static_cast<double>(late - late_pushes_));
    late_pushes_ = late;
  }

  ShardThread* const thread_;
  std::unique_ptr<ParameterShard> shard_;
  ShardListener* const listener_;
  ShardProgress* const progress_;
  Registrations registrations_;
  std::vector<Worker> workers_;  // by rank
  std::vector<PeerId> shards_;   // of the same job, those that it agrees with on every step
  bool retired_ = false;
  UpdateTimer update_timer_;
  int64_t late_pushes_ = 0;  // counted in the metrics
};

// ---------------------------------------------------------------- life

absl::StatusOr<std::unique_ptr<ShardThread>> ShardThread::Start(TransportFactory factory,
                                                                PsMetrics* metrics) {
  auto thread = absl::WrapUnique(new ShardThread(std::move(factory), metrics));
  RETURN_IF_ERROR(thread->AwaitTransport());
  return thread;
}

ShardThread::ShardThread(TransportFactory factory, PsMetrics* metrics)
    : metrics_(metrics),
      counts_(metrics->AddShardThread()),
      hello_payloads_(kHelloPayloads * kHelloBytesMax),
      mailbox_(limits::kMailboxMessagesMax,
               [this] {
                 mail_ = true;
                 Wake();
               }),
      thread_([this, factory = std::move(factory)] { Run(factory); }) {}

ShardThread::~ShardThread() { Stop(); }

void ShardThread::Stop() {
  stopping_ = true;
  Wake();
  if (thread_.joinable()) thread_.join();
}

void ShardThread::Wake() {
  absl::MutexLock lock(&mu_);
  if (awake_ != nullptr) awake_->Wake();
}

absl::Status ShardThread::AwaitTransport() {
  absl::MutexLock lock(&mu_);
  auto made = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return made_.has_value(); };
  mu_.Await(absl::Condition(&made));
  return *made_;
}

absl::Status ShardThread::MakeTransport(const TransportFactory& factory) {
  ASSIGN_OR_RETURN(transport_, factory());
  transport_->SetReceiver(this);
  address_ = transport_->address();
  transport_name_ = transport_->name();
  absl::MutexLock lock(&mu_);
  awake_ = transport_.get();
  return absl::OkStatus();
}

void ShardThread::Run(const TransportFactory& factory) {
  unplaced_.reserve(kUnplacedMax);
  const absl::Status made = MakeTransport(factory);
  {
    absl::MutexLock lock(&mu_);
    made_ = made;
  }
  if (!made.ok()) return;
  Serve();
  mailbox_.Close();
  RunCommands();
  {
    absl::MutexLock lock(&mu_);
    awake_ = nullptr;
  }
  for (const std::unique_ptr<Tenant>& tenant : tenants_) tenant->Retire();  // returns leases
  transport_.reset();  // before the memory that it may still be using
  tenants_.clear();
}

void ShardThread::Serve() {
  while (!stopping_) {
    if (mail_.load(std::memory_order_acquire) && mail_.exchange(false)) RunCommands();
    const int events = transport_->Progress();
    AnswerUnplaced();
    DestroyReleased();
    if (events == 0) transport_->Wait(kWaitMax);
  }
}

void ShardThread::RunCommands() {
  for (Command& command : mailbox_.TakeAll()) command();
}

void ShardThread::DestroyReleased() {
  std::erase_if(tenants_, [](std::unique_ptr<Tenant>& tenant) {
    if (!tenant->retired() || !tenant->shard().idle()) return false;
    tenant->DisconnectAll();
    return true;
  });
}

// ---------------------------------------------------------------- commands

void ShardThread::Install(std::unique_ptr<ParameterShard> shard, ShardListener* listener,
                          ShardProgress* progress) {
  const int number = shard->shard();
  const bool posted = mailbox_.Post([this, shard = std::move(shard), listener, progress]() mutable {
    Admit(std::move(shard), listener, progress);
  });
  if (!posted) listener->ShardInstalled(number, absl::CancelledError("the process is ending"));
}

void ShardThread::Admit(std::unique_ptr<ParameterShard> shard, ShardListener* listener,
                        ShardProgress* progress) {
  const int number = shard->shard();
  Registrations registrations;
  for (const absl::Span<std::byte> memory : shard->memory()) {
    if (memory.empty()) continue;
    auto registered = transport_->RegisterMemory(memory);
    if (!registered.ok()) return listener->ShardInstalled(number, registered.status());
    registrations.push_back(*std::move(registered));
  }
  absl::StatusOr<std::vector<PeerId>> shards = ConnectToShards(*shard);
  if (!shards.ok()) return listener->ShardInstalled(number, shards.status());
  tenants_.push_back(std::make_unique<Tenant>(this, std::move(shard), listener, progress,
                                              std::move(registrations), *std::move(shards)));
  listener->ShardInstalled(number, absl::OkStatus());
}

// By shard: kNone but for those that agree with it, by way of shard 0, on every step.
absl::StatusOr<std::vector<PeerId>> ShardThread::ConnectToShards(const ParameterShard& shard) {
  const v1::JobPlan& plan = shard.plan();
  std::vector<PeerId> peers(plan.shards_size(), PeerId::kNone);
  const bool agree =
      StepsAreJudged(plan.spec().training()) || plan.spec().sync().backup_workers() > 0;
  if (!agree) return peers;
  for (int other = 0; other < plan.shards_size(); ++other) {
    if (other == shard.shard() || (other != 0 && shard.shard() != 0)) continue;
    absl::StatusOr<PeerId> peer = transport_->Connect(plan.shards(other).address());
    if (!peer.ok()) {
      for (const PeerId made : peers) {
        if (made != PeerId::kNone) transport_->Disconnect(made);
      }
      return Annotate(peer.status(), absl::StrCat("the address of shard ", other));
    }
    peers[other] = *peer;
  }
  return peers;
}

void ShardThread::ForTenant(uint64_t job, uint32_t generation,
                            absl::AnyInvocable<void(Tenant&)> action) {
  mailbox_.Post([this, job, generation, action = std::move(action)]() mutable {
    if (Tenant* tenant = Find(job, generation)) action(*tenant);
  });
}

void ShardThread::StartJob(uint64_t job, uint32_t generation, int64_t total_steps) {
  ForTenant(job, generation, [total_steps](Tenant& tenant) { tenant.shard().Start(total_steps); });
}

void ShardThread::TakeSnapshot(uint64_t job, uint32_t generation, uint64_t id, int64_t step) {
  ForTenant(job, generation, [id, step](Tenant& tenant) { tenant.shard().TakeSnapshot(id, step); });
}

void ShardThread::SnapshotWritten(uint64_t job, uint32_t generation, uint64_t id, int64_t step) {
  ForTenant(job, generation,
            [id, step](Tenant& tenant) { tenant.shard().SnapshotWritten(id, step); });
}

void ShardThread::Release(uint64_t job, uint32_t generation) {
  ForTenant(job, generation, [](Tenant& tenant) { tenant.Retire(); });
}

// ---------------------------------------------------------------- messages

ShardThread::Tenant* ShardThread::Find(uint64_t job, uint32_t generation) {
  for (const std::unique_ptr<Tenant>& tenant : tenants_) {
    if (tenant->Is(job, generation) && !tenant->retired()) return tenant.get();
  }
  return nullptr;
}

// Whose message it is, or why nobody takes it.
RefusalReason ShardThread::Route(const WireHeader& header, Tenant*& tenant) {
  tenant = Find(header.job, header.generation);
  if (tenant == nullptr) {
    const bool old = std::any_of(tenants_.begin(), tenants_.end(), [&](const auto& other) {
      return other->plan().job_number() == header.job &&
             other->plan().generation() > header.generation;
    });
    return old ? RefusalReason::kOldGeneration : RefusalReason::kUnknownJob;
  }
  if (!tenant->HasRank(header.rank)) return RefusalReason::kWrongRank;
  if (header.kind != MessageKind::kHello && !tenant->Greeted(header.rank)) {
    return RefusalReason::kNotGreeted;
  }
  return RefusalReason::kNone;
}

PayloadPlace ShardThread::PlacePayload(const WireHeader& header) {
  if (header.kind == MessageKind::kHello && header.length <= kHelloBytesMax) {
    std::byte* memory = &hello_payloads_[next_hello_++ % kHelloPayloads * kHelloBytesMax];
    return absl::Span<std::byte>(memory, header.length);
  }
  if (IsDecision(header.kind) && header.length <= kHelloBytesMax) {
    return absl::Span<std::byte>(
        hello_payloads_.data() + next_hello_++ % kHelloPayloads * kHelloBytesMax, header.length);
  }
  if (IsReport(header.kind)) return PlaceReport(header);
  ParameterShard::Placement placement{.refusal = RefusalReason::kBadHeader};
  if (header.kind == MessageKind::kPush) {
    Tenant* tenant = nullptr;
    placement.refusal = Route(header, tenant);
    if (placement.refusal == RefusalReason::kNone) placement = tenant->shard().PlacePush(header);
  }
  if (!placement.memory.empty()) return {placement.memory, placement.in_place};
  if (placement.repeat) metrics_->duplicate_pushes.Increment();
  if (placement.refusal != RefusalReason::kNone) metrics_->refused(placement.refusal).Increment();
  if (placement.refusal == RefusalReason::kNone || unplaced_.size() < kUnplacedMax) {
    unplaced_.push_back({header, placement.refusal});
  }
  return {};
}

void ShardThread::AnswerUnplaced() {
  for (const UnplacedMessage& message : unplaced_) {
    Tenant* tenant = nullptr;
    if (message.refusal != RefusalReason::kNone) {
      SendRefusal(message.header, message.refusal);
    } else if (Route(message.header, tenant) == RefusalReason::kNone) {
      tenant->shard().AnswerRepeat(message.header);
    }
  }
  unplaced_.clear();
}

void ShardThread::Received(const WireHeader& header, absl::Span<const std::byte> payload,
                           PayloadLease lease) {
  switch (header.kind) {
    case MessageKind::kHello:
      return Greet(header, payload);
    case MessageKind::kPush:
      return ReceivedPush(header, payload, std::move(lease));
    case MessageKind::kFetch:
      return ReceivedFetch(header);
    case MessageKind::kSquares:
    case MessageKind::kArrived:
    case MessageKind::kNorms:
    case MessageKind::kTrust:
      return ReceivedReport(header, payload);
    case MessageKind::kVerdict:
    case MessageKind::kClosed:
      return ReceivedDecision(header, payload);
    case MessageKind::kParams:
    case MessageKind::kRefused:
      break;
  }
  Refuse(header, RefusalReason::kBadHeader);
}

void ShardThread::ReceivedPush(const WireHeader& header, absl::Span<const std::byte> payload,
                               PayloadLease lease) {
  if (payload.empty()) {
    Tenant* tenant = nullptr;
    const RefusalReason unrouted = Route(header, tenant);
    return Refuse(header,
                  unrouted != RefusalReason::kNone ? unrouted : RefusalReason::kWrongLength);
  }
  counts_.pushes.Add(1);
  counts_.push_bytes.Add(static_cast<int64_t>(payload.size()));
  // Also one that was retired meanwhile: it waits for its payloads.
  for (const std::unique_ptr<Tenant>& tenant : tenants_) {
    if (!tenant->Is(header.job, header.generation)) continue;
    const RefusalReason refusal = tenant->shard().PushArrived(header, payload, std::move(lease));
    if (refusal != RefusalReason::kNone) Refuse(header, refusal);
    return;
  }
}

void ShardThread::ReceivedFetch(const WireHeader& header) {
  Tenant* tenant = nullptr;
  RefusalReason refusal = Route(header, tenant);
  if (refusal == RefusalReason::kNone) refusal = tenant->shard().Fetch(header);
  if (refusal != RefusalReason::kNone) Refuse(header, refusal);
}

// What one shard says to another is not answered when it is wrong: shards of one job agree, so it
// is a stranger who speaks.

absl::Span<std::byte> ShardThread::PlaceReport(const WireHeader& header) {
  Tenant* tenant = Find(header.job, header.generation);
  absl::Span<std::byte> place;
  if (tenant != nullptr) {
    place = header.kind == MessageKind::kArrived ? tenant->shard().PlaceRanks(header)
                                                 : tenant->shard().PlaceScalars(header);
  }
  if (place.empty()) metrics_->refused(RefusalReason::kWrongStep).Increment();
  return place;
}

void ShardThread::ReceivedReport(const WireHeader& header, absl::Span<const std::byte> payload) {
  if (payload.empty()) return metrics_->refused(RefusalReason::kWrongLength).Increment();
  // Also of one that was retired meanwhile: it waits for its payloads.
  for (const std::unique_ptr<Tenant>& tenant : tenants_) {
    if (!tenant->Is(header.job, header.generation)) continue;
    const bool token_is_right = HasToken(payload, tenant->plan());
    if (!token_is_right) metrics_->refused(RefusalReason::kWrongToken).Increment();
    return header.kind == MessageKind::kArrived
               ? tenant->shard().RanksArrived(header, token_is_right)
               : tenant->shard().ScalarsArrived(header, token_is_right);
  }
}

void ShardThread::ReceivedDecision(const WireHeader& header, absl::Span<const std::byte> payload) {
  Tenant* tenant = Find(header.job, header.generation);
  RefusalReason refusal = RefusalReason::kNone;
  if (tenant == nullptr) {
    refusal = RefusalReason::kUnknownJob;
  } else if (!HasToken(payload, tenant->plan())) {
    refusal = RefusalReason::kWrongToken;
  } else {
    refusal = header.kind == MessageKind::kVerdict
                  ? tenant->shard().VerdictArrived(header)
                  : tenant->shard().StepClosed(header, payload.subspan(kTokenBytes));
  }
  if (refusal != RefusalReason::kNone) metrics_->refused(refusal).Increment();
}

void ShardThread::Greet(const WireHeader& header, absl::Span<const std::byte> payload) {
  Tenant* tenant = nullptr;
  const absl::string_view text(reinterpret_cast<const char*>(payload.data()), payload.size());
  RefusalReason refusal = Route(header, tenant);
  if (refusal == RefusalReason::kNone && !HasToken(payload, tenant->plan())) {
    refusal = RefusalReason::kWrongToken;
  }
  if (refusal != RefusalReason::kNone) {
    LOG_EVERY_T(WARNING, 10) << "dropping a HELLO for job " << header.job << ", generation "
                             << header.generation << ", rank " << header.rank << ": "
                             << RefusalReasonName(refusal);
    metrics_->refused(refusal).Increment();  // never dialled back
    return;
  }
  if (absl::Status connected = tenant->Connect(header.rank, text.substr(kTokenBytes));
      !connected.ok()) {
    LOG(WARNING) << tenant->plan().job() << ": cannot answer the HELLO of "
                 << tenant->plan().workers(header.rank).member() << ": " << connected;
    return Refuse(header, RefusalReason::kBadHeader);
  }
  tenant->SendTo(static_cast<int>(header.rank),
                 {.kind = MessageKind::kHello,
                  .generation = header.generation,
                  .job = header.job,
                  .chunk = header.chunk,
                  .rank = header.rank},
                 {}, nullptr);
  metrics_->ShowLink(tenant->plan().job(), tenant->plan().workers(header.rank).member(),
                     transport_->Describe(tenant->PeerOf(header.rank)));
}

void ShardThread::Refuse(const WireHeader& header, RefusalReason reason) {
  metrics_->refused(reason).Increment();
  SendRefusal(header, reason);
}

// Only to a worker that was greeted for this very generation: nobody else is known.
void ShardThread::SendRefusal(const WireHeader& header, RefusalReason reason) {
  Tenant* tenant = Find(header.job, header.generation);
  if (tenant == nullptr || !tenant->Greeted(header.rank)) return;
  WireHeader refusal = header;
  refusal.kind = MessageKind::kRefused;
  refusal.dtype = WireDType::kNone;
  refusal.codec = WireCodec::kRaw;
  refusal.reason = reason;
  refusal.length = 0;
  refusal.scalar = 0;
  tenant->SendTo(static_cast<int>(header.rank), refusal, {}, nullptr);
}

void ShardThread::PeerLost(PeerId peer, const absl::Status& why) {
  for (const std::unique_ptr<Tenant>& tenant : tenants_) {
    if (const int other = tenant->ShardOf(peer); other >= 0) {
      LOG_IF(WARNING, !tenant->retired())
          << tenant->plan().job() << ", shard " << tenant->shard().shard() << ": lost shard "
          << other << " on " << tenant->plan().shards(other).member() << ": " << why.message();
      return tenant->DisconnectShard(other);
    }
    const int rank = tenant->RankOf(peer);
    if (rank < 0) continue;
    LOG_IF(WARNING, !tenant->retired())
        << tenant->plan().job() << ", shard " << tenant->shard().shard() << ": lost "
        << tenant->plan().workers(rank).member() << " (rank " << rank << "): " << why.message();
    return tenant->Disconnect(static_cast<uint32_t>(rank));
  }
  transport_->Disconnect(peer);
}

}  // namespace muster
