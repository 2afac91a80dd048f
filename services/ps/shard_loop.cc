#include "services/ps/shard_loop.h"

#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "lib/limits/limits.h"
#include "lib/log/log_scope.h"
#include "lib/plan/parameter_table.h"
#include "lib/shard/chunks/plan_credentials.h"
#include "lib/shard/replication/shard_replica.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// A thread that is always busy still copies for snapshots, once in this many turns.
constexpr int kBusyTurnsMax = 16;
constexpr size_t kUnplacedMax =
    1024;  // refusals in one turn; repeated and late pushes are always answered

// Returns whether the message carries numbers between shards or to a replica. The receiving shard
// has a place of its own for them.
bool IsReport(MessageKind kind) {
  using enum MessageKind;
  return kind == kSquares || kind == kArrived || kind == kNorms || kind == kTrust || kind == kState;
}

// Returns whether a peer with this identity may send such a message to a shard of a ps. Only shard
// 0 sends decisions. A shard is the worker of its replica's session.
bool MaySay(const LinkIdentity& who, MessageKind kind) {
  switch (kind) {
    case MessageKind::kHello:
      return who.role == LinkRole::kWorker || who.role == LinkRole::kReplica;
    case MessageKind::kPush:
    case MessageKind::kFetch:
      return who.role == LinkRole::kWorker;
    case MessageKind::kState:
      return who.role == LinkRole::kWorker && IsSessionOfReplica(who.job);
    case MessageKind::kHeld:
      return who.role == LinkRole::kShard || who.role == LinkRole::kReplica;
    case MessageKind::kRefused:
      return who.role == LinkRole::kReplica;
    case MessageKind::kSquares:
    case MessageKind::kArrived:
    case MessageKind::kNorms:
      return who.role == LinkRole::kShard && who.index != 0;
    case MessageKind::kVerdict:
    case MessageKind::kClosed:
    case MessageKind::kTrust:
      return who.role == LinkRole::kShard && who.index == 0;
    case MessageKind::kParams:
      return false;
  }
  return false;
}

std::string MemberOf(const LinkIdentity& who, const InstalledShard& shard) {
  const int index = static_cast<int>(who.index);
  switch (who.role) {
    case LinkRole::kWorker:
      return shard.plan().workers(index).member();
    case LinkRole::kShard:
      return shard.plan().shards(index).member();
    case LinkRole::kReplica:
      return shard.plan().shards(ToInt(shard.number())).backup().member();
  }
  return "";
}

}  // namespace

// ---------------------------------------------------------------- lifetime

ShardLoop::ShardLoop(std::unique_ptr<Transport> transport, PsMetrics* metrics, ShardCounts* counts,
                     absl::Duration release_wait)
    : metrics_(metrics),
      counts_(*counts),
      release_wait_(absl::ToChronoNanoseconds(release_wait)),
      transport_(std::move(transport)) {
  unplaced_.reserve(kUnplacedMax);
  transport_->SetReceiver(this);
}

ShardLoop::~ShardLoop() {
  for (const auto& installed : shards_) installed->Retire();  // returns leases
  transport_.reset();  // before the memory that it may still use
  shards_.clear();
  jobs_.clear();
}

int ShardLoop::Turn(absl::FunctionRef<Clock::time_point()> clock) {
  for (const auto& installed : shards_) installed->shard().PassOverSnapshots(clock);
  int events = transport_->Progress();
  AnswerUnplaced();
  CutOffBreaches();
  if ((events == 0 || ++busy_turns_ >= kBusyTurnsMax) && CopyForSnapshot()) ++events;
  DestroyReleased(clock);
  LeaveReleased(clock);
  return events;
}

// Copies one chunk; the shards take turns. Then looks at the sockets once: a polling transport does
// so only rarely, and received messages must not wait for more than one copy.
bool ShardLoop::CopyForSnapshot() {
  busy_turns_ = 0;
  for (size_t i = 0; i < shards_.size(); ++i) {
    const size_t at = (copied_last_ + 1 + i) % shards_.size();
    if (!shards_[at]->shard().CopyOne()) continue;
    copied_last_ = at;
    transport_->Wait(absl::ZeroDuration());
    return true;
  }
  return false;
}

void ShardLoop::DestroyReleased(absl::FunctionRef<Clock::time_point()> clock) {
  for (size_t i = 0; i < shards_.size();) {
    InstalledShard& installed = *shards_[i];
    if (installed.retired() && installed.shard().idle()) {
      shards_.erase(shards_.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    if (installed.retired() && installed.patience().IsOver(release_wait_, clock())) {
      installed.links().CutOff(installed);
    }
    ++i;
  }
}

// Closes the links of released jobs once their peers have left, or after a while. A peer that is
// released later than this shard would take an earlier end for its death.
void ShardLoop::LeaveReleased(absl::FunctionRef<Clock::time_point()> clock) {
  for (size_t i = 0; i < jobs_.size();) {
    JobLinks& links = *jobs_[i];
    if (!links.released() || links.has_shards() ||
        (!links.empty() && !links.patience().IsOver(release_wait_, clock()))) {
      ++i;
      continue;
    }
    links.Close();
    links.RemoveIf([](const Link&) { return true; });
    jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// Returns the links that admit members of the job, or null.
JobLinks* ShardLoop::FindLinks(uint64_t job) {
  const auto found = std::ranges::find_if(
      jobs_, [job](const auto& links) { return links->job() == job && links->open(); });
  return found == jobs_.end() ? nullptr : found->get();
}

// Returns the links for the plan: those of the job's earlier generation, unless the token differs.
JobLinks& ShardLoop::LinksFor(const v1::JobPlan& plan, const SessionToken& token) {
  if (JobLinks* const before = FindLinks(plan.job_number())) {
    if (before->token() == token && before->generation() < plan.generation()) return *before;
    before->Release();
    before->Close();
  }
  return *jobs_.emplace_back(
      std::make_unique<JobLinks>(transport_.get(), &links_, plan.job_number(), token));
}

// ---------------------------------------------------------------- commands

void ShardLoop::Install(std::unique_ptr<ParameterShard> shard, ShardListener* listener,
                        ShardProgress* progress) {
  const ShardIndex number = shard->shard();
  // The threads that prepare two generations of a job do not wait for each other, so an older one
  // may come late.
  const JobLinks* const there = FindLinks(shard->plan().job_number());
  if (there != nullptr && !there->released() && there->generation() >= shard->plan().generation()) {
    return listener->ShardInstalled(number, absl::FailedPreconditionError(absl::StrCat(
                                                "generation ", there->generation(), " of ",
                                                shard->plan().job(), " is installed already")));
  }
  // Everything that can fail comes before LinksFor(), which may end the links of the last
  // generation.
  InstalledShard::Registrations registrations;
  for (const absl::Span<std::byte> memory : shard->memory()) {
    if (memory.empty()) continue;
    auto registered = transport_->RegisterMemory(memory);
    if (!registered.ok()) return listener->ShardInstalled(number, registered.status());
    registrations.push_back(*std::move(registered));
  }
  const v1::JobPlan& plan = shard->plan();
  const absl::StatusOr<LinkCredentials> credentials = CredentialsOf(plan, number);
  if (!credentials.ok()) return listener->ShardInstalled(number, credentials.status());
  shard->DeferCopies();
  JobLinks& links = LinksFor(plan, credentials->token);
  const InstalledShard::Environment environment{transport_.get(), metrics_, &counts_};
  InstalledShard& installed = *shards_.emplace_back(std::make_unique<InstalledShard>(
      environment, std::move(shard), listener, progress, std::move(registrations), &links));
  links.Open(&installed);
  listener->ShardInstalled(number, absl::OkStatus());
}

// If shards agree on every step, every other shard has a link to shard 0. When the job starts, all
// shards accept connections, and the links of the last generation are not needed. Links between
// shards are not renamed: a report may overtake the HELLO before it, and a shard does not wait for
// an answer.
void ShardLoop::ConnectToFirstShard(InstalledShard& installed) {
  const v1::JobPlan& plan = installed.plan();
  const bool agree = StepsAreJudged(plan.spec().training()) ||
                     plan.spec().sync().backup_workers() > 0 || IsReplicated(plan);
  const ShardIndex self = installed.number();
  if (!agree || self == kFirstShard || IsOfReplica(plan)) return;
  if (installed.PeerAt({LinkRole::kShard, 0}) != PeerId::kNone) return;
  const absl::StatusOr<LinkCredentials> credentials =
      CredentialsFor(SessionOf(plan, kFirstShard), plan, self);
  CHECK(credentials.ok()) << credentials.status();
  const absl::StatusOr<PeerId> peer = transport_->Connect(plan.shards(0).address(), *credentials);
  if (!peer.ok()) {
    return installed.listener().ShardFailed(
        self, WithReason(Annotate(peer.status(), "cannot connect to shard 0"), "PS_UNREACHABLE"),
        plan.shards(0).member());
  }
  LinkIdentity first = credentials->self;
  first.index = 0;
  installed.links().Add(*peer, first);
}

// A shard connects to its replica as the only worker of the replica's session.
void ShardLoop::ConnectToReplica(InstalledShard& installed) {
  const v1::JobPlan& plan = installed.plan();
  const ShardIndex self = installed.number();
  if (!HasReplica(plan, self)) return;
  if (installed.PeerAt({LinkRole::kReplica, 0}) != PeerId::kNone) return;
  const v1::PlanBackup& replica = plan.shards(ToInt(self)).backup();
  const absl::StatusOr<LinkCredentials> credentials =
      CredentialsFor(SessionOfReplica(plan, self), plan, Rank(0));
  CHECK(credentials.ok()) << credentials.status();
  const absl::StatusOr<PeerId> peer = transport_->Connect(replica.address(), *credentials);
  if (!peer.ok()) {
    return installed.listener().ShardFailed(
        self,
        WithReason(Annotate(peer.status(), "cannot connect to the shard's replica"),
                   "PS_UNREACHABLE"),
        replica.member());
  }
  LinkIdentity who = credentials->self;
  who.role = LinkRole::kReplica;
  installed.links().Add(*peer, who);
  transport_->Send(*peer,
                   {.kind = MessageKind::kHello,
                    .generation = plan.generation(),
                    .job = who.job,
                    .step = plan.first_step(),
                    .chunk = static_cast<uint32_t>(self)},
                   {}, nullptr);
}

void ShardLoop::StartJob(uint64_t job, uint32_t generation, int64_t total_steps) {
  InstalledShard* const installed = Find(job, generation);
  if (installed == nullptr) return;
  installed->links().RemoveIf([generation](const Link& link) {
    return link.who.role != LinkRole::kWorker && link.who.generation < generation;
  });
  ConnectToFirstShard(*installed);
  ConnectToReplica(*installed);
  installed->shard().Start(total_steps);
}

void ShardLoop::TakeSnapshot(uint64_t job, uint32_t generation, uint64_t id, int64_t step) {
  if (InstalledShard* const installed = Find(job, generation)) {
    installed->shard().TakeSnapshot(id, step);
  }
}

void ShardLoop::SnapshotWritten(uint64_t job, uint32_t generation, uint64_t id, int64_t step) {
  if (InstalledShard* const installed = Find(job, generation)) {
    installed->shard().SnapshotWritten(id, step);
  }
}

void ShardLoop::Halt(uint64_t job, uint32_t generation) {
  InstalledShard* const installed = Find(job, generation);
  if (installed == nullptr) return;
  installed->links().Release();
  installed->links().CutOffAll();
}

void ShardLoop::Release(uint64_t job, uint32_t generation) {
  if (InstalledShard* const installed = Find(job, generation)) installed->links().Release();
}

// ---------------------------------------------------------------- messages

InstalledShard* ShardLoop::Find(uint64_t job, uint32_t generation) {
  for (const auto& installed : shards_) {
    if (installed->Is(job, generation) && !installed->retired()) return installed.get();
  }
  return nullptr;
}

void ShardLoop::PeerJoined(PeerId peer, const LinkIdentity& who) {
  JobLinks* const links = FindLinks(who.job);
  const RefusalReason refusal =
      links == nullptr ? RefusalReason::kUnknownJob : links->Join(peer, who);
  if (refusal == RefusalReason::kNone) return;
  LOG_EVERY_T(WARNING, 1) << "refusing the connection of " << NameOf(who) << ": "
                          << RefusalReasonName(refusal);
  metrics_->refused(refusal).Increment();
  transport_->Disconnect(peer);
}

// Returns the sender's link if it may send the message. Job and sender in a header are believed
// only if they are the link's own; peers that violate this are cut off after Progress(). In a
// generation other than the link's, the peer may have another rank. Its messages there are refused,
// except the HELLO that renames it.
ShardLoop::Link* ShardLoop::SenderOf(PeerId from, const WireHeader& header) {
  const auto found = links_.find(from);
  if (found == links_.end()) return nullptr;
  Link& link = *found->second;
  if (link.breach) return nullptr;
  if (header.job == link.who.job &&
      (header.rank == link.who.index || header.generation != link.who.generation) &&
      MaySay(link.who, header.kind)) {
    return &link;
  }
  link.breach = true;
  breaches_.push_back(from);
  metrics_->refused(RefusalReason::kBadHeader).Increment();
  LOG_EVERY_T(WARNING, 1) << "cutting off " << NameOf(link.who) << ": it sent a message of kind "
                          << static_cast<int>(header.kind) << " as number " << header.rank
                          << " of job " << header.job << ", which it may not send";
  return nullptr;
}

PayloadPlace ShardLoop::PlacePayload(PeerId from, const WireHeader& header) {
  Link* const link = SenderOf(from, header);
  if (link == nullptr) return {};
  if (header.kind == MessageKind::kClosed) {
    if (link->job->Addressed(*link, header) == nullptr) return {};
    return link->job->PlaceDecision(header.length);
  }
  if (IsReport(header.kind)) return PlaceReport(*link, header);
  ParameterShard::Placement placement{.refusal = RefusalReason::kBadHeader};
  if (header.kind == MessageKind::kPush) {
    placement.refusal = link->job->Judge(*link, header);
    if (placement.refusal == RefusalReason::kNone) {
      placement = link->job->shard()->shard().PlacePush(header);
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

void ShardLoop::AnswerUnplaced() {
  for (const UnplacedMessage& message : unplaced_) {
    const auto found = links_.find(message.from);
    if (found == links_.end()) continue;
    const Link& link = *found->second;
    if (message.refusal != RefusalReason::kNone) {
      SendRefusal(link, message.header, message.refusal);
    } else if (link.job->Judge(link, message.header) == RefusalReason::kNone) {
      link.job->shard()->shard().AnswerRepeat(message.header);
    }
  }
  unplaced_.clear();
}

void ShardLoop::CutOffBreaches() {
  for (const PeerId peer : breaches_) {
    const auto link = links_.find(peer);
    if (link != links_.end()) link->second->job->Remove(*link->second);
  }
  breaches_.clear();
}

void ShardLoop::Received(PeerId from, const WireHeader& header, absl::Span<const std::byte> payload,
                         PayloadLease lease) {
  Link* const link = SenderOf(from, header);
  if (link == nullptr) return;
  switch (header.kind) {
    case MessageKind::kHello:
      return link->who.role == LinkRole::kReplica ? ReceivedFromReplica(*link, header)
                                                  : Greet(*link, header);
    case MessageKind::kHeld:
      return ReceivedHeld(*link, header);
    case MessageKind::kRefused:
      return ReceivedFromReplica(*link, header);
    case MessageKind::kPush:
      return ReceivedPush(*link, header, payload, std::move(lease));
    case MessageKind::kFetch:
      return ReceivedFetch(*link, header);
    case MessageKind::kSquares:
    case MessageKind::kArrived:
    case MessageKind::kNorms:
    case MessageKind::kTrust:
    case MessageKind::kState:
      return ReceivedReport(*link, header, payload);
    case MessageKind::kVerdict:
    case MessageKind::kClosed:
      return ReceivedDecision(*link, header, payload);
    case MessageKind::kParams:
      break;  // never sent to a ps
  }
}

// Gives back the place of a payload that will not arrive. The place of a CLOSED decision belongs to
// no shard, so this ignores the decision.
void ShardLoop::PayloadLost(PeerId from, const WireHeader& header) {
  const auto found = links_.find(from);
  if (found == links_.end() || header.kind == MessageKind::kClosed) return;
  ParameterShard& shard = found->second->job->Placed(header).shard();
  if (header.kind == MessageKind::kPush) {
    shard.PushLost(header);
  } else {
    shard.ReportLost(header);
  }
}

// Transports name no place for an empty payload, so the shard decides about such a push here.
// Returns whether it takes the push. If not, the push is answered.
bool ShardLoop::PlaceEmptyPush(const Link& link, const WireHeader& header) {
  ParameterShard::Placement placement{.refusal = link.job->Judge(link, header)};
  if (placement.refusal == RefusalReason::kNone) {
    placement = link.job->shard()->shard().PlacePush(header);
  }
  if (placement.repeat) metrics_->duplicate_pushes.Increment();
  if (placement.refusal != RefusalReason::kNone) {
    Refuse(link, header, placement.refusal);
  } else if (!placement.taken) {
    link.job->shard()->shard().AnswerRepeat(header);
  }
  return placement.taken;
}

void ShardLoop::ReceivedPush(const Link& link, const WireHeader& header,
                             absl::Span<const std::byte> payload, PayloadLease lease) {
  if (payload.empty() && !PlaceEmptyPush(link, header)) return;
  counts_.pushes.Add(1);
  counts_.push_bytes.Add(static_cast<int64_t>(payload.size()));
  InstalledShard& installed = link.job->Placed(header);
  installed.CountPush(header, payload.size());
  const InstalledShard::PushSpan span(&installed, header);
  const RefusalReason refusal = installed.shard().PushArrived(header, payload, std::move(lease));
  if (refusal != RefusalReason::kNone) Refuse(link, header, refusal);
}

void ShardLoop::ReceivedFetch(const Link& link, const WireHeader& header) {
  RefusalReason refusal = link.job->Judge(link, header);
  if (refusal == RefusalReason::kNone) refusal = link.job->shard()->shard().Fetch(header);
  if (refusal != RefusalReason::kNone) Refuse(link, header, refusal);
}

// A wrong message between shards is not answered: the shards of one job follow the same plan.

absl::Span<std::byte> ShardLoop::PlaceReport(const Link& link, const WireHeader& header) {
  absl::Span<std::byte> place;
  if (InstalledShard* const installed = link.job->Addressed(link, header)) {
    place = installed->shard().PlaceReport(header);
  }
  if (place.empty()) metrics_->refused(RefusalReason::kWrongStep).Increment();
  return place;
}

void ShardLoop::ReceivedReport(const Link& link, const WireHeader& header,
                               absl::Span<const std::byte> payload) {
  if (payload.empty()) return metrics_->refused(RefusalReason::kWrongLength).Increment();
  link.job->Placed(header).shard().ReportArrived(header);
}

// Handles a greeting or a refusal of the replica. A replica that refuses a message cannot follow
// its shard any more, so the shard fails.
void ShardLoop::ReceivedFromReplica(const Link& link, const WireHeader& header) {
  InstalledShard* const installed = link.job->Addressed(link, header);
  if (installed == nullptr) return;
  if (header.kind == MessageKind::kHello) return installed->shard().ReplicaConnected();
  const std::string& member =
      installed->plan().shards(ToInt(installed->number())).backup().member();
  installed->listener().ShardFailed(
      installed->number(),
      WithReason(absl::InternalError(absl::StrCat(
                     "the shard's replica on ", member, " refused step ", header.step, " of chunk ",
                     header.chunk, ": ", RefusalReasonName(header.reason))),
                 "PS_PROTOCOL"),
      member);
}

void ShardLoop::ReceivedHeld(const Link& link, const WireHeader& header) {
  InstalledShard* const installed = link.job->Addressed(link, header);
  if (installed == nullptr) return metrics_->refused(RefusalReason::kUnknownJob).Increment();
  return link.who.role == LinkRole::kReplica ? installed->shard().ReplicaHolds(header)
                                             : installed->shard().ReplicasHold(header);
}

void ShardLoop::ReceivedDecision(const Link& link, const WireHeader& header,
                                 absl::Span<const std::byte> payload) {
  RefusalReason refusal = RefusalReason::kUnknownJob;
  if (InstalledShard* const installed = link.job->Addressed(link, header)) {
    refusal = installed->shard().DecisionArrived(header, payload);
  }
  if (refusal != RefusalReason::kNone) metrics_->refused(refusal).Increment();
}

void ShardLoop::Greet(Link& link, const WireHeader& header) {
  if (const RefusalReason refusal = link.job->Judge(link, header);
      refusal != RefusalReason::kNone) {
    return Refuse(link, header, refusal);
  }
  link.job->Greet(link, header);
  InstalledShard& installed = *link.job->shard();
  installed.SendTo(Rank(header.rank),
                   {.kind = MessageKind::kHello,
                    .generation = header.generation,
                    .job = header.job,
                    .chunk = header.chunk,
                    .rank = header.rank},
                   {}, nullptr);
  metrics_->ShowLink(installed.plan().job(), installed.plan().workers(header.rank).member(),
                     transport_->Describe(link.peer));
}

void ShardLoop::Refuse(const Link& link, const WireHeader& header, RefusalReason reason) {
  metrics_->refused(reason).Increment();
  SendRefusal(link, header, reason);
}

// Refusals go only to a greeted worker of a job that is not released.
void ShardLoop::SendRefusal(const Link& link, const WireHeader& header, RefusalReason reason) {
  if (link.who.role != LinkRole::kWorker || link.job->released() || !link.greeted) return;
  WireHeader refusal = header;
  refusal.kind = MessageKind::kRefused;
  refusal.dtype = WireDType::kNone;
  refusal.codec = WireCodec::kRaw;
  refusal.reason = reason;
  refusal.length = 0;
  refusal.scalar = 0;
  transport_->Send(link.peer, refusal, {}, nullptr);
}

void ShardLoop::PeerLost(PeerId peer, const absl::Status& why) {
  const auto found = links_.find(peer);
  if (found == links_.end()) return transport_->Disconnect(peer);
  const Link& link = *found->second;
  const LinkIdentity who = link.who;
  // Null means that nothing here depends on the peer.
  InstalledShard* const shard =
      who.generation == link.job->generation() ? link.job->shard() : nullptr;
  link.job->Remove(link);
  if (shard == nullptr) return;
  InstalledShard& installed = *shard;
  const v1::JobPlan& plan = installed.plan();
  const LogScope scope({.job = plan.job(), .generation = plan.generation()});
  const std::string member = MemberOf(who, installed);
  const std::string name =
      who.role == LinkRole::kWorker  ? absl::StrCat(member, " (rank ", who.index, ")")
      : who.role == LinkRole::kShard ? absl::StrCat("shard ", who.index, " of ", member)
                                     : absl::StrCat("its replica on ", member);
  LOG(WARNING) << plan.job() << ", " << (IsOfReplica(plan) ? "replica of shard " : "shard ")
               << installed.number() << ": lost " << name << ": " << why.message();
  // A peer may leave after the last step.
  if (installed.shard().finished()) return;
  if (who.role == LinkRole::kWorker) {
    return installed.listener().LinkLost(installed.number(), member);
  }
  // No step can be agreed on any more, and shards do not reconnect.
  installed.listener().ShardFailed(
      installed.number(),
      WithReason(absl::UnavailableError(absl::StrCat("lost ", name, ": ", why.message())),
                 "PS_UNREACHABLE"),
      member);
}

}  // namespace muster
