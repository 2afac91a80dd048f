#include "services/ps/shard_thread.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "lib/limits/limits.h"
#include "lib/plan/parameter_table.h"
#include "lib/shard/plan_credentials.h"
#include "lib/status/status.h"
#include "services/ps/update_timer.h"

namespace muster {
namespace {

constexpr absl::Duration kWaitMax = absl::Seconds(10);  // everything that matters wakes us
constexpr size_t kUnplacedMax =
    1024;  // refusals in one turn; repeated and late pushes are all answered
// A bit for each of limits::kWorkersMax ranks.
constexpr size_t kDecisionBytesMax = limits::kWorkersMax / 8 + 8;
constexpr size_t kDecisions = 4;  // shard 0 sends the next one when all have had the last

using Clock = std::chrono::steady_clock;
using Registrations = std::vector<std::unique_ptr<Transport::MemoryRegistration>>;

// What one shard of a job says to another: numbers with a place of their own.
bool IsReport(MessageKind kind) {
  using enum MessageKind;
  return kind == kSquares || kind == kArrived || kind == kNorms || kind == kTrust;
}

// Whether one who is `role` may say such a thing to a shard of a ps. What shard 0 decides is its
// own to say.
bool MaySay(const LinkIdentity& who, MessageKind kind) {
  switch (kind) {
    case MessageKind::kHello:
    case MessageKind::kPush:
    case MessageKind::kFetch:
      return who.role == LinkRole::kWorker;
    case MessageKind::kSquares:
    case MessageKind::kArrived:
    case MessageKind::kNorms:
      return who.role == LinkRole::kShard && who.index != 0;
    case MessageKind::kVerdict:
    case MessageKind::kClosed:
    case MessageKind::kTrust:
      return who.role == LinkRole::kShard && who.index == 0;
    case MessageKind::kParams:
    case MessageKind::kRefused:
      return false;
  }
  return false;
}

}  // namespace

class ShardThread::Tenant : public ShardOutput {
 public:
  Tenant(ShardThread* thread, std::unique_ptr<ParameterShard> shard, ShardListener* listener,
         ShardProgress* progress, Registrations registrations)
      : thread_(thread),
        shard_(std::move(shard)),
        listener_(listener),
        progress_(progress),
        registrations_(std::move(registrations)),
        workers_(shard_->plan().workers_size()),
        shards_(shard_->plan().shards_size(), PeerId::kNone) {
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
  Clock::time_point retired_at() const { return retired_at_; }
  void Retire() {
    if (!retired_) retired_at_ = Clock::now();
    retired_ = true;
    shard_->Retire();
  }

  bool Is(uint64_t job, uint32_t generation) const {
    return plan().job_number() == job && plan().generation() == generation;
  }
  bool Has(const LinkIdentity& who) const {
    return who.index < (who.role == LinkRole::kWorker ? workers_.size() : shards_.size());
  }
  bool Greeted(uint32_t rank) const { return workers_[rank].greeted; }
  void SetGreeted(uint32_t rank) { workers_[rank].greeted = true; }

  // Of one who connected. A second link of the same member takes the place of the first.
  void Join(PeerId peer, const LinkIdentity& who) {
    if (who.role == LinkRole::kShard) {
      if (shards_[who.index] != PeerId::kNone) DisconnectShard(static_cast<int>(who.index));
      shards_[who.index] = peer;
      return;
    }
    Disconnect(who.index);
    workers_[who.index] = {.peer = peer};
    if (thread_->transport_->Describe(peer).shares_memory()) {
      update_timer_.set_values_are_read_in_place();
    }
  }

  // Of another shard that this one connected to.
  void Joined(int shard, PeerId peer) { shards_[shard] = peer; }

  void Disconnect(uint32_t rank) {
    const PeerId peer = std::exchange(workers_[rank], {}).peer;
    if (peer == PeerId::kNone) return;
    thread_->Disconnect(peer);
    shard_->RankLost(static_cast<int>(rank));
  }

  void DisconnectShard(int other) {
    thread_->Disconnect(std::exchange(shards_[other], PeerId::kNone));
    shard_->ShardLost(other);
  }

  // Where shard 0's decision is to be placed. They take turns in these places.
  absl::Span<std::byte> PlaceDecision(const WireHeader& header) {
    if (retired_ || header.length > kDecisionBytesMax) return {};
    return {&decisions_[next_decision_++ % kDecisions * kDecisionBytesMax], header.length};
  }

  void DisconnectAll() {
    for (uint32_t rank = 0; rank < workers_.size(); ++rank) Disconnect(rank);
    for (int other = 0; other < std::ssize(shards_); ++other) {
      if (shards_[other] != PeerId::kNone) DisconnectShard(other);
    }
  }

  // Whoever holds up the end of the shard.
  void CutOff() {
    std::vector<std::string> members;
    for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
      if (workers_[rank].peer != PeerId::kNone) {
        members.push_back(plan().workers(static_cast<int>(rank)).member());
      }
    }
    for (int other = 0; other < std::ssize(shards_); ++other) {
      if (HasShard(other)) members.push_back(plan().shards(other).member());
    }
    if (members.empty()) return;  // it was done before
    LOG(WARNING) << plan().job() << ", shard " << shard_->shard()
                 << ": was released and still sends to or receives from one of "
                 << absl::StrJoin(members, ", ") << "; disconnecting them";
    DisconnectAll();
  }

  bool HasShard(int other) const { return shards_[other] != PeerId::kNone; }
  PeerId PeerOf(uint32_t rank) const { return workers_[rank].peer; }

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
    bool greeted = false;  // has said HELLO
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
  std::array<std::byte, kDecisions * kDecisionBytesMax> decisions_;
  size_t next_decision_ = 0;
  bool retired_ = false;
  Clock::time_point retired_at_;
  UpdateTimer update_timer_;
  int64_t late_pushes_ = 0;  // counted in the metrics
};

// ---------------------------------------------------------------- life

absl::StatusOr<std::unique_ptr<ShardThread>> ShardThread::Start(TransportFactory factory,
                                                                PsMetrics* metrics,
                                                                absl::Duration release_wait) {
  auto thread = absl::WrapUnique(new ShardThread(std::move(factory), metrics, release_wait));
  RETURN_IF_ERROR(thread->AwaitTransport());
  return thread;
}

ShardThread::ShardThread(TransportFactory factory, PsMetrics* metrics, absl::Duration release_wait)
    : metrics_(metrics),
      counts_(metrics->AddShardThread()),
      release_wait_(absl::ToChronoNanoseconds(release_wait)),
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
    CutOffBreaches();
    DestroyReleased();
    if (events == 0) transport_->Wait(kWaitMax);
  }
}

void ShardThread::RunCommands() {
  for (Command& command : mailbox_.TakeAll()) command();
}

void ShardThread::DestroyReleased() {
  std::erase_if(tenants_, [this](std::unique_ptr<Tenant>& tenant) {
    if (!tenant->retired()) return false;
    if (!tenant->shard().idle()) {
      if (Clock::now() >= tenant->retired_at() + release_wait_) tenant->CutOff();
      return false;
    }
    // One of the same generation may have been installed since.
    if (Find(tenant->plan().job_number(), tenant->plan().generation()) == nullptr) {
      transport_->CloseSession(tenant->plan().job_number(), tenant->plan().generation());
    }
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
  const v1::JobPlan& plan = shard->plan();
  const absl::StatusOr<LinkCredentials> credentials = CredentialsOf(plan, LinkRole::kShard, number);
  if (!credentials.ok()) return listener->ShardInstalled(number, credentials.status());
  transport_->OpenSession(plan.job_number(), plan.generation(), credentials->token);
  tenants_.push_back(std::make_unique<Tenant>(this, std::move(shard), listener, progress,
                                              std::move(registrations)));
  listener->ShardInstalled(number, absl::OkStatus());
}

// Where shards agree on every step, by way of shard 0, every other one has a link to it. When the
// job starts all of them are there to be connected to.
void ShardThread::ConnectToFirstShard(Tenant& tenant) {
  const v1::JobPlan& plan = tenant.plan();
  const bool agree =
      StepsAreJudged(plan.spec().training()) || plan.spec().sync().backup_workers() > 0;
  const int self = tenant.shard().shard();
  if (!agree || self == 0 || tenant.HasShard(0)) return;
  const absl::StatusOr<LinkCredentials> credentials = CredentialsOf(plan, LinkRole::kShard, self);
  CHECK(credentials.ok()) << credentials.status();
  const absl::StatusOr<PeerId> peer = transport_->Connect(plan.shards(0).address(), *credentials);
  if (!peer.ok()) {
    return tenant.listener().ShardFailed(
        self, WithReason(Annotate(peer.status(), "the address of shard 0"), "PS_UNREACHABLE"),
        plan.shards(0).member());
  }
  LinkIdentity first = credentials->self;
  first.index = 0;
  links_[*peer] = {&tenant, first};
  tenant.Joined(0, *peer);
}

void ShardThread::ForTenant(uint64_t job, uint32_t generation,
                            absl::AnyInvocable<void(Tenant&)> action) {
  mailbox_.Post([this, job, generation, action = std::move(action)]() mutable {
    if (Tenant* tenant = Find(job, generation)) action(*tenant);
  });
}

void ShardThread::StartJob(uint64_t job, uint32_t generation, int64_t total_steps) {
  ForTenant(job, generation, [this, total_steps](Tenant& tenant) {
    ConnectToFirstShard(tenant);
    tenant.shard().Start(total_steps);
  });
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

void ShardThread::PeerJoined(PeerId peer, const LinkIdentity& who) {
  Tenant* tenant = Find(who.job, who.generation);
  if (tenant == nullptr || !tenant->Has(who)) {
    LOG_EVERY_T(WARNING, 1) << "turning away " << NameOf(who) << ": "
                            << (tenant == nullptr ? "the job was released" : "it has no such");
    metrics_->refused(tenant == nullptr ? RefusalReason::kUnknownJob : RefusalReason::kWrongRank)
        .Increment();
    return transport_->Disconnect(peer);
  }
  tenant->Join(peer, who);
  links_[peer] = {tenant, who};
}

void ShardThread::Disconnect(PeerId peer) {
  links_.erase(peer);
  transport_->Disconnect(peer);
}

// Who speaks, where he may say that: what a header says of job and sender is believed only where it
// is the link's own. Others are cut off after Progress().
ShardThread::Link* ShardThread::SenderOf(PeerId from, const WireHeader& header) {
  const auto found = links_.find(from);
  if (found == links_.end()) return nullptr;
  Link& link = found->second;
  if (link.breach) return nullptr;
  if (header.job == link.who.job && header.rank == link.who.index &&
      MaySay(link.who, header.kind)) {
    return &link;
  }
  link.breach = true;
  breaches_.push_back(from);
  metrics_->refused(RefusalReason::kBadHeader).Increment();
  LOG_EVERY_T(WARNING, 1) << "cutting off " << NameOf(link.who) << ", who sent a message of kind "
                          << static_cast<int>(header.kind) << " as number " << header.rank
                          << " of job " << header.job << ": nobody in that place does";
  return nullptr;
}

// Why its shard does not take a message of a worker.
RefusalReason ShardThread::Judge(const Link& link, const WireHeader& header) {
  if (header.generation < link.who.generation) return RefusalReason::kOldGeneration;
  if (link.tenant->retired() || header.generation > link.who.generation) {
    return RefusalReason::kUnknownJob;
  }
  if (header.kind != MessageKind::kHello && !link.tenant->Greeted(header.rank)) {
    return RefusalReason::kNotGreeted;
  }
  return RefusalReason::kNone;
}

PayloadPlace ShardThread::PlacePayload(PeerId from, const WireHeader& header) {
  Link* const link = SenderOf(from, header);
  if (link == nullptr) return {};
  if (header.kind == MessageKind::kClosed) return link->tenant->PlaceDecision(header);
  if (IsReport(header.kind)) return PlaceReport(*link, header);
  ParameterShard::Placement placement{.refusal = RefusalReason::kBadHeader};
  if (header.kind == MessageKind::kPush) {
    placement.refusal = Judge(*link, header);
    if (placement.refusal == RefusalReason::kNone) {
      placement = link->tenant->shard().PlacePush(header);
    }
  }
  if (!placement.memory.empty()) return {placement.memory, placement.in_place};
  if (placement.repeat) metrics_->duplicate_pushes.Increment();
  if (placement.refusal != RefusalReason::kNone) metrics_->refused(placement.refusal).Increment();
  if (placement.refusal == RefusalReason::kNone || unplaced_.size() < kUnplacedMax) {
    unplaced_.push_back({from, header, placement.refusal});
  }
  return {};
}

void ShardThread::AnswerUnplaced() {
  for (const UnplacedMessage& message : unplaced_) {
    const auto link = links_.find(message.from);
    if (link == links_.end()) continue;
    if (message.refusal != RefusalReason::kNone) {
      SendRefusal(link->second, message.header, message.refusal);
    } else if (Judge(link->second, message.header) == RefusalReason::kNone) {
      link->second.tenant->shard().AnswerRepeat(message.header);
    }
  }
  unplaced_.clear();
}

void ShardThread::CutOffBreaches() {
  for (const PeerId peer : breaches_) {
    const auto link = links_.find(peer);
    if (link == links_.end()) continue;
    Tenant& tenant = *link->second.tenant;
    const LinkIdentity who = link->second.who;
    if (who.role == LinkRole::kWorker) {
      tenant.Disconnect(who.index);
    } else {
      tenant.DisconnectShard(static_cast<int>(who.index));
    }
  }
  breaches_.clear();
}

void ShardThread::Received(PeerId from, const WireHeader& header,
                           absl::Span<const std::byte> payload, PayloadLease lease) {
  Link* const link = SenderOf(from, header);
  if (link == nullptr) return;
  switch (header.kind) {
    case MessageKind::kHello:
      return Greet(*link, header);
    case MessageKind::kPush:
      return ReceivedPush(*link, header, payload, std::move(lease));
    case MessageKind::kFetch:
      return ReceivedFetch(*link, header);
    case MessageKind::kSquares:
    case MessageKind::kArrived:
    case MessageKind::kNorms:
    case MessageKind::kTrust:
      return ReceivedReport(*link, header, payload);
    case MessageKind::kVerdict:
    case MessageKind::kClosed:
      return ReceivedDecision(*link, header, payload);
    case MessageKind::kParams:
    case MessageKind::kRefused:
      break;  // nobody may say that here
  }
}

// Also of a tenant that was retired meanwhile: it waits for its payloads.
void ShardThread::PayloadLost(PeerId from, const WireHeader& header) {
  const auto found = links_.find(from);
  if (found == links_.end()) return;
  ParameterShard& shard = found->second.tenant->shard();
  if (header.kind == MessageKind::kPush) {
    shard.PushLost(header);
  } else if (header.kind == MessageKind::kArrived) {
    shard.RanksLost(header);
  } else if (IsReport(header.kind)) {
    shard.ScalarsLost(header);
  }
}

void ShardThread::ReceivedPush(const Link& link, const WireHeader& header,
                               absl::Span<const std::byte> payload, PayloadLease lease) {
  if (payload.empty()) {
    const RefusalReason refusal = Judge(link, header);
    return Refuse(link, header,
                  refusal != RefusalReason::kNone ? refusal : RefusalReason::kWrongLength);
  }
  counts_.pushes.Add(1);
  counts_.push_bytes.Add(static_cast<int64_t>(payload.size()));
  // Also to a tenant that was retired meanwhile: it waits for its payloads.
  const RefusalReason refusal = link.tenant->shard().PushArrived(header, payload, std::move(lease));
  if (refusal != RefusalReason::kNone) Refuse(link, header, refusal);
}

void ShardThread::ReceivedFetch(const Link& link, const WireHeader& header) {
  RefusalReason refusal = Judge(link, header);
  if (refusal == RefusalReason::kNone) refusal = link.tenant->shard().Fetch(header);
  if (refusal != RefusalReason::kNone) Refuse(link, header, refusal);
}

// What one shard says to another is not answered when it is wrong: shards of one job agree.

absl::Span<std::byte> ShardThread::PlaceReport(const Link& link, const WireHeader& header) {
  absl::Span<std::byte> place;
  if (!link.tenant->retired() && header.generation == link.who.generation) {
    place = header.kind == MessageKind::kArrived ? link.tenant->shard().PlaceRanks(header)
                                                 : link.tenant->shard().PlaceScalars(header);
  }
  if (place.empty()) metrics_->refused(RefusalReason::kWrongStep).Increment();
  return place;
}

void ShardThread::ReceivedReport(const Link& link, const WireHeader& header,
                                 absl::Span<const std::byte> payload) {
  if (payload.empty()) return metrics_->refused(RefusalReason::kWrongLength).Increment();
  // Also of one that was retired meanwhile: it waits for its payloads.
  return header.kind == MessageKind::kArrived ? link.tenant->shard().RanksArrived(header)
                                              : link.tenant->shard().ScalarsArrived(header);
}

void ShardThread::ReceivedDecision(const Link& link, const WireHeader& header,
                                   absl::Span<const std::byte> payload) {
  RefusalReason refusal = RefusalReason::kUnknownJob;
  if (!link.tenant->retired() && header.generation == link.who.generation) {
    refusal = header.kind == MessageKind::kVerdict
                  ? link.tenant->shard().VerdictArrived(header)
                  : link.tenant->shard().StepClosed(header, payload);
  }
  if (refusal != RefusalReason::kNone) metrics_->refused(refusal).Increment();
}

void ShardThread::Greet(const Link& link, const WireHeader& header) {
  if (const RefusalReason refusal = Judge(link, header); refusal != RefusalReason::kNone) {
    return metrics_->refused(refusal).Increment();
  }
  Tenant& tenant = *link.tenant;
  tenant.SetGreeted(header.rank);
  tenant.SendTo(static_cast<int>(header.rank),
                {.kind = MessageKind::kHello,
                 .generation = header.generation,
                 .job = header.job,
                 .chunk = header.chunk,
                 .rank = header.rank},
                {}, nullptr);
  metrics_->ShowLink(tenant.plan().job(), tenant.plan().workers(header.rank).member(),
                     transport_->Describe(tenant.PeerOf(header.rank)));
}

void ShardThread::Refuse(const Link& link, const WireHeader& header, RefusalReason reason) {
  metrics_->refused(reason).Increment();
  SendRefusal(link, header, reason);
}

// Only to a worker that was greeted, and that has not been released with its job.
void ShardThread::SendRefusal(const Link& link, const WireHeader& header, RefusalReason reason) {
  if (link.who.role != LinkRole::kWorker || link.tenant->retired() ||
      !link.tenant->Greeted(header.rank)) {
    return;
  }
  WireHeader refusal = header;
  refusal.kind = MessageKind::kRefused;
  refusal.dtype = WireDType::kNone;
  refusal.codec = WireCodec::kRaw;
  refusal.reason = reason;
  refusal.length = 0;
  refusal.scalar = 0;
  link.tenant->SendTo(static_cast<int>(header.rank), refusal, {}, nullptr);
}

void ShardThread::PeerLost(PeerId peer, const absl::Status& why) {
  const auto found = links_.find(peer);
  if (found == links_.end()) return transport_->Disconnect(peer);
  Tenant& tenant = *found->second.tenant;
  const LinkIdentity who = found->second.who;
  const bool worker = who.role == LinkRole::kWorker;
  LOG_IF(WARNING, !tenant.retired())
      << tenant.plan().job() << ", shard " << tenant.shard().shard() << ": lost "
      << (worker ? absl::StrCat(tenant.plan().workers(static_cast<int>(who.index)).member(),
                                " (rank ", who.index, ")")
                 : absl::StrCat("shard ", who.index, " on ",
                                tenant.plan().shards(static_cast<int>(who.index)).member()))
      << ": " << why.message();
  if (worker) return tenant.Disconnect(who.index);
  const int shard = static_cast<int>(who.index);
  tenant.DisconnectShard(shard);
  if (tenant.retired() || tenant.shard().finished()) return;
  // No step can be agreed on any more, and nobody connects again.
  const std::string& member = tenant.plan().shards(shard).member();
  tenant.listener().ShardFailed(
      tenant.shard().shard(),
      WithReason(absl::UnavailableError(
                     absl::StrCat("lost shard ", shard, " of ", member, ": ", why.message())),
                 "PS_UNREACHABLE"),
      member);
}

}  // namespace muster
