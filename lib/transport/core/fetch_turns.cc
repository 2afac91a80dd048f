#include "lib/transport/core/fetch_turns.h"

#include <algorithm>
#include <limits>

namespace muster {
namespace {

constexpr size_t kSendersMax = 256;  // exceeded only while more senders are active

}  // namespace

struct FetchTurns::Sender {
  uint64_t bytes_begun = 0;  // bytes whose fetch was started, in total
  int fetching = 0;
  Payload* first = nullptr;  // of the waiting payloads
  Payload* last = nullptr;

  bool idle() const { return fetching == 0 && first == nullptr; }
};

FetchTurns::FetchTurns() : FetchTurns(Options()) {}
FetchTurns::FetchTurns(const Options& options) : options_(options) {}
FetchTurns::~FetchTurns() = default;

void FetchTurns::Wait(Payload* payload, PeerId peer, size_t bytes) {
  Sender& sender = Find(peer);
  // An idle sender saves up no turns: it starts level with the active sender that has had the
  // least.
  if (sender.idle()) sender.bytes_begun = std::max(sender.bytes_begun, LeastBegun());
  payload->sender_ = &sender;
  payload->bytes_ = bytes;
  payload->next_ = nullptr;
  (sender.first == nullptr ? sender.first : sender.last->next_) = payload;
  sender.last = payload;
  ++waiting_;
}

FetchTurns::Payload* FetchTurns::Begin(Time now) {
  if (waiting_ == 0 || !MayBegin(now)) return nullptr;
  Sender& sender = *Next();
  Payload* const payload = TakeFirst(sender);
  sender.bytes_begun += payload->bytes_;
  ++sender.fetching;
  payload->begin_ = now;
  fetching_.push_back(payload);
  return payload;
}

void FetchTurns::End(Payload* payload) {
  std::erase(fetching_, payload);
  --payload->sender_->fetching;
}

void FetchTurns::Leave(Payload* payload) {
  Sender& sender = *payload->sender_;
  Payload* before = nullptr;
  Payload* at = sender.first;
  while (at != payload) before = std::exchange(at, at->next_);
  (before == nullptr ? sender.first : before->next_) = payload->next_;
  if (sender.last == payload) sender.last = before;
  --waiting_;
}

FetchTurns::Payload* FetchTurns::Abandon(PeerId peer) {
  const auto known = senders_.find(peer);
  if (known == senders_.end() || known->second->first == nullptr) return nullptr;
  return TakeFirst(*known->second);
}

bool FetchTurns::MayBegin(Time now) {
  size_t bytes = 0;
  for (const Payload* payload : fetching_) bytes += payload->bytes_;
  if (fetching_.size() < options_.fetches_min || bytes < options_.bytes_max) return true;
  // Payloads that take longer than the patience are no longer counted, so a slow sender does not
  // block the others.
  const Time late = now - options_.patience;
  return std::erase_if(fetching_, [late](const Payload* p) { return p->begin_ < late; }) > 0;
}

FetchTurns::Sender& FetchTurns::Find(PeerId peer) {
  const auto known = senders_.find(peer);
  if (known != senders_.end()) return *known->second;
  // Idle senders can be forgotten: Wait() gives a returning sender no credit.
  if (senders_.size() >= kSendersMax) {
    absl::erase_if(senders_, [](const auto& sender) { return sender.second->idle(); });
  }
  return *(senders_[peer] = std::make_unique<Sender>());
}

FetchTurns::Sender* FetchTurns::Next() const {
  Sender* next = nullptr;
  for (const auto& [peer, sender] : senders_) {
    if (sender->first == nullptr) continue;
    if (next == nullptr || sender->bytes_begun < next->bytes_begun) next = sender.get();
  }
  return next;
}

FetchTurns::Payload* FetchTurns::TakeFirst(Sender& sender) {
  Payload* const payload = sender.first;
  sender.first = payload->next_;
  --waiting_;
  return payload;
}

uint64_t FetchTurns::LeastBegun() const {
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (const auto& [peer, sender] : senders_) {
    if (!sender->idle()) least = std::min(least, sender->bytes_begun);
  }
  return least == std::numeric_limits<uint64_t>::max() ? 0 : least;
}

}  // namespace muster
