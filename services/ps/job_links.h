// The connections of one job at a shard thread.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "lib/limits/limits.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"

namespace muster {

class InstalledShard;

// The links of one job at one shard thread, and the session that admits peers. They outlive the
// job's generations. InstalledShard holds what a plan fixes, such as the ranks of peers.
//
// The session admits one generation at a time, and a connecting peer proves that it means that
// generation. Peers that are in stay in when the next generation is opened. A peer is renamed when
// it says HELLO for the next generation. When the job is released here, its links are kept until
// their peers leave: a peer would take an early end for a death.
//
// Called on the transport's thread. The destructor does not call the transport. If links are left,
// the transport must be destroyed first, because payloads may be under way into memory of this
// object.
class JobLinks {
 public:
  using Clock = std::chrono::steady_clock;

  // A link and the peer at its other end.
  struct Link {
    JobLinks* job;
    PeerId peer;
    LinkIdentity who;      // proved when it connected, or said since in a HELLO
    bool greeted = false;  // has said HELLO
    bool breach = false;   // sent a forbidden message, and will be cut off
  };
  // Waits for peers. The wait begins with the first call of IsOver().
  class Patience {
   public:
    bool IsOver(Clock::duration wait, Clock::time_point now) {
      if (!since_) since_ = now;
      return now >= *since_ + wait;
    }

   private:
    std::optional<Clock::time_point> since_;
  };
  // The links of all jobs of a thread, by peer.
  using Index = absl::flat_hash_map<PeerId, Link*>;

  // Keeps its links in `index` too, which must outlive this object.
  JobLinks(Transport* transport, Index* index, uint64_t job, const SessionToken& token);
  JobLinks(const JobLinks&) = delete;
  JobLinks& operator=(const JobLinks&) = delete;

  uint64_t job() const { return job_; }
  const SessionToken& token() const { return token_; }

  // ---- lifetime

  // Admits members of the shard's generation, and no longer those of the generation before; retires
  // the shard of that generation. Disconnects peers that did not follow to the previous generation,
  // because they will not follow to this one. The shard calls ShardDestroyed().
  void Open(InstalledShard* shard);
  void ShardDestroyed(InstalledShard* shard);
  // The generation that was opened last, and its shard until the shard is retired.
  uint32_t generation() const { return generation_; }
  InstalledShard* shard() const { return released() ? nullptr : shard_; }
  // True if any shard, perhaps of an earlier generation, is not destroyed yet.
  bool has_shards() const { return !shards_.empty(); }

  // Retires the shard. Members are still admitted, and are told nothing.
  void Release();
  bool released() const { return released_; }
  Patience& patience() { return patience_; }  // of a released job, with connected peers
  // Admits no more peers.
  void Close();
  bool open() const { return open_; }

  // ---- links; their addresses are stable until they are removed

  // Adds the link of a peer that connected. A second link of a member replaces the first. Returns
  // kUnknownJob if the peer is of another generation, or kWrongRank if the shard has no seat for
  // it; the caller then disconnects the peer.
  RefusalReason Join(PeerId peer, const LinkIdentity& who);
  // Adds a link to a member. Requires: no peer has that member's seat.
  void Add(PeerId peer, const LinkIdentity& who);
  // Disconnects the link. On return, memory that the peer was sending to is free.
  void Remove(const Link& link);
  void RemoveIf(absl::FunctionRef<bool(const Link&)> which);
  // Cuts off all links of this generation and earlier ones, including those of stalled peers.
  void CutOffAll();
  bool empty() const { return links_.empty(); }
  // Removes the links that delay the end of `shard`. Keeps a peer that has followed to a later
  // generation: if it has stalled, it delays that generation too.
  void CutOff(const InstalledShard& shard);

  // ---- messages; `header` has this job's number and its sender's rank in the header's generation

  // Returns why the shard refuses a worker's message, or kNone if the shard is there and takes it.
  RefusalReason Judge(const Link& link, const WireHeader& header) const;
  // Returns the shard if the peer addresses it in the peer's own generation, else null.
  InstalledShard* Addressed(const Link& link, const WireHeader& header) const;
  // Returns the shard that has named memory for a payload. It may have been retired since, and
  // waits for the payload.
  InstalledShard& Placed(const WireHeader& header) const;
  // Handles a HELLO that Judge() allows. If the HELLO is for a later generation than the link's,
  // the peer follows to that generation and gets the rank that it states. This is safe: a peer that
  // knows the job's token could also have connected with that rank.
  void Greet(Link& link, const WireHeader& hello);

  // Returns the place for a decision of shard 0 of `bytes` bytes, or an empty span if it is larger
  // than any decision. Decisions rotate through a few places: shard 0 makes the next one only after
  // all shards have received the last.
  absl::Span<std::byte> PlaceDecision(uint64_t bytes);

 private:
  static constexpr size_t kDecisionBytesMax = limits::kWorkersMax / 8 + 8;  // one bit per rank
  static constexpr size_t kDecisions = 4;

  void Remove(const Link& link, void (Transport::*end)(PeerId));
  void RemoveFrom(const LinkIdentity& who);  // the peer in that member's seat

  Transport* const transport_;
  Index& index_;
  const uint64_t job_;
  const SessionToken token_;
  uint32_t generation_ = 0;
  InstalledShard* shard_ = nullptr;      // of generation_, until it is destroyed
  std::vector<InstalledShard*> shards_;  // shard_ and earlier ones
  bool open_ = false;
  bool released_ = false;
  Patience patience_;
  absl::node_hash_map<PeerId, Link> links_;
  std::array<std::byte, kDecisions * kDecisionBytesMax> decisions_;
  size_t next_decision_ = 0;
};

}  // namespace muster
