#include "services/ps/job_links.h"

#include <glog/logging.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "lib/log/log_scope.h"
#include "services/ps/installed_shard.h"

namespace muster {

JobLinks::JobLinks(Transport* transport, Index* index, uint64_t job, const SessionToken& token)
    : transport_(transport), index_(*index), job_(job), token_(token) {}

// ---------------------------------------------------------------- lifetime

void JobLinks::Open(InstalledShard* shard) {
  if (shard_ != nullptr) shard_->Retire();
  RemoveIf([this](const Link& link) { return link.who.generation < generation_; });
  generation_ = shard->plan().generation();
  shard_ = shard;
  shards_.push_back(shard);
  released_ = false;
  patience_ = {};
  transport_->OpenSession(job_, generation_, token_);
  open_ = true;
}

void JobLinks::ShardDestroyed(InstalledShard* shard) {
  std::erase(shards_, shard);
  if (shard == shard_) shard_ = nullptr;
}

void JobLinks::Release() {
  if (released()) return;
  shard_->Retire();
  released_ = true;
}

void JobLinks::Close() {
  if (std::exchange(open_, false)) transport_->CloseSession(job_, generation_);
}

// ---------------------------------------------------------------- links

// A peer is admitted even after the job was released. It is told nothing, but it may not know of
// the release yet.
RefusalReason JobLinks::Join(PeerId peer, const LinkIdentity& who) {
  if (who.generation != generation_) return RefusalReason::kUnknownJob;
  if (!released()) {
    if (!shard_->HasSeat({who.role, who.index})) return RefusalReason::kWrongRank;
    RemoveFrom(who);
  }
  Add(peer, who);
  return RefusalReason::kNone;
}

void JobLinks::Add(PeerId peer, const LinkIdentity& who) {
  const auto added = links_.try_emplace(peer, Link{.job = this, .peer = peer, .who = who}).first;
  index_[peer] = &added->second;
  if (!released()) shard_->Take({who.role, who.index}, peer);
}

void JobLinks::RemoveFrom(const LinkIdentity& who) {
  const PeerId before = shard_->PeerAt({who.role, who.index});
  if (before != PeerId::kNone) Remove(links_.at(before));
}

void JobLinks::Remove(const Link& link) { Remove(link, &Transport::Disconnect); }

// First takes the peer's seats, so that nothing is sent to it any more, even from inside `end`. A
// shard of an earlier generation may still receive payloads from the peer, so all shards are told.
void JobLinks::Remove(const Link& link, void (Transport::*end)(PeerId)) {
  const PeerId peer = link.peer;
  std::vector<std::pair<InstalledShard*, InstalledShard::Seat>> left;
  for (InstalledShard* shard : shards_) {
    if (const auto seat = shard->Leave(peer)) left.emplace_back(shard, *seat);
  }
  index_.erase(peer);
  links_.erase(peer);
  (transport_->*end)(peer);
  for (const auto& [shard, seat] : left) shard->Lost(seat);
}

void JobLinks::CutOffAll() {
  std::vector<const Link*> links;
  // Collected first, because Remove() changes links_.
  for (const auto& [peer, link] : links_) {
    if (link.who.generation <= generation_) links.push_back(&link);
  }
  for (const Link* link : links) Remove(*link, &Transport::CutOff);
}

void JobLinks::RemoveIf(absl::FunctionRef<bool(const Link&)> which) {
  std::vector<const Link*> removed;
  for (const auto& [peer, link] : links_) {
    if (which(link)) removed.push_back(&link);
  }
  for (const Link* link : removed) Remove(*link);
}

void JobLinks::CutOff(const InstalledShard& shard) {
  std::vector<std::string> members;
  std::vector<const Link*> links;
  for (const InstalledShard::Seated& seated : shard.seated()) {
    const Link& link = links_.at(seated.peer);
    if (link.who.generation > shard.plan().generation()) continue;
    members.push_back(seated.member);
    links.push_back(&link);
  }
  if (links.empty()) return;  // they were removed before
  const LogScope scope({.job = shard.plan().job(), .generation = shard.plan().generation()});
  LOG(WARNING) << shard.plan().job() << ", shard " << shard.number()
               << ": was released, but still sends to or receives from "
               << absl::StrJoin(members, ", ") << "; disconnecting them";
  for (const Link* link : links) Remove(*link);
}

// ---------------------------------------------------------------- messages

RefusalReason JobLinks::Judge(const Link& link, const WireHeader& header) const {
  if (header.generation < generation_) return RefusalReason::kOldGeneration;
  if (header.generation > generation_ || released()) return RefusalReason::kUnknownJob;
  if (header.kind == MessageKind::kHello) {
    return shard_->HasSeat({LinkRole::kWorker, header.rank}) ? RefusalReason::kNone
                                                             : RefusalReason::kWrongRank;
  }
  return link.greeted && link.who.generation == generation_ ? RefusalReason::kNone
                                                            : RefusalReason::kNotGreeted;
}

InstalledShard* JobLinks::Addressed(const Link& link, const WireHeader& header) const {
  const bool now = header.generation == generation_ && link.who.generation == generation_;
  return now ? shard() : nullptr;
}

InstalledShard& JobLinks::Placed(const WireHeader& header) const {
  if (header.generation == generation_) return *shard_;
  const auto found = std::ranges::find_if(shards_, [&](const InstalledShard* shard) {
    return shard->plan().generation() == header.generation;
  });
  CHECK(found != shards_.end()) << "a payload outlived the shard that named its memory";
  return **found;
}

void JobLinks::Greet(Link& link, const WireHeader& hello) {
  link.greeted = true;
  if (link.who.generation == hello.generation) return;
  LinkIdentity who = link.who;
  who.generation = hello.generation;
  who.index = hello.rank;
  RemoveFrom(who);
  link.who = who;
  shard_->Take({who.role, who.index}, link.peer);
}

absl::Span<std::byte> JobLinks::PlaceDecision(uint64_t bytes) {
  if (bytes > kDecisionBytesMax) return {};
  return {&decisions_[next_decision_++ % kDecisions * kDecisionBytesMax], bytes};
}

}  // namespace muster
