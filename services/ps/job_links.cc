#include "services/ps/job_links.h"

#include <utility>

namespace muster {

JobLinks::JobLinks(Transport* transport, uint64_t job, const SessionToken& token)
    : transport_(transport), job_(job), token_(token) {}

void JobLinks::Open(uint32_t generation, InstalledShard* shard) {
  transport_->OpenSession(job_, generation, token_);
  generation_ = generation;
  shard_ = shard;
  open_ = true;
  released_at_.reset();
}

void JobLinks::Close() {
  if (std::exchange(open_, false)) transport_->CloseSession(job_, generation_);
}

void JobLinks::Release() {
  if (!released()) released_at_ = Clock::now();
}

JobLinks::Link& JobLinks::Add(PeerId peer, const LinkIdentity& who) {
  return links_.try_emplace(peer, Link{.job = this, .peer = peer, .who = who}).first->second;
}

void JobLinks::Remove(PeerId peer) {
  links_.erase(peer);
  transport_->Disconnect(peer);
}

std::vector<PeerId> JobLinks::peers() const {
  std::vector<PeerId> peers;
  peers.reserve(links_.size());
  for (const auto& [peer, link] : links_) peers.push_back(peer);
  return peers;
}

absl::Span<std::byte> JobLinks::PlaceDecision(uint64_t bytes) {
  if (bytes > kDecisionBytesMax) return {};
  return {&decisions_[next_decision_++ % kDecisions * kDecisionBytesMax], bytes};
}

}  // namespace muster
