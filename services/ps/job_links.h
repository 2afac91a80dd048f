// Who is connected to a shard thread for one job.
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

// The links of one job at one shard thread and the session that lets their owners in. They outlive
// the job's generations: what a plan fixes, such as who has which rank, is InstalledShard's.
//
// The session is of one generation at a time, and whoever connects proves that he means that one.
// Who is in stays in when the next one is opened; he is renamed when he says HELLO of it. When the
// job is released here its links are kept until their owners leave: to them it would look like a
// death.
//
// Of the transport's thread. The transport is not called by the destructor: it may be gone by then,
// and has to be where links are left, since payloads may be under way into memory of this.
class JobLinks {
 public:
  using Clock = std::chrono::steady_clock;

  // Who is at the other end of a link.
  struct Link {
    JobLinks* job;
    PeerId peer;
    LinkIdentity who;      // as he proved to be, or has said since in a HELLO
    bool greeted = false;  // has said HELLO
    bool breach = false;   // said what is not his to say, and is about to be cut off
  };
  // Somebody is waited for, from when it is first asked whether that is for too long.
  class Patience {
   public:
    bool IsOver(Clock::duration wait, Clock::time_point now) {
      if (!since_) since_ = now;
      return now >= *since_ + wait;
    }

   private:
    std::optional<Clock::time_point> since_;
  };
  // The links of all jobs of a thread.
  using Index = absl::flat_hash_map<PeerId, Link*>;

  // Keeps its links in `index` as well, which outlives it.
  JobLinks(Transport* transport, Index* index, uint64_t job, const SessionToken& token);
  JobLinks(const JobLinks&) = delete;
  JobLinks& operator=(const JobLinks&) = delete;

  uint64_t job() const { return job_; }
  const SessionToken& token() const { return token_; }

  // ---- life

  // Lets in members of the shard's generation, and nobody any more who means the one before, whose
  // shard is retired. Who has not come along to that one will not come to this one either, and is
  // disconnected. The shard says when it is destroyed.
  void Open(InstalledShard* shard);
  void ShardDestroyed(InstalledShard* shard);
  // The generation that was opened last, and its shard until that is retired.
  uint32_t generation() const { return generation_; }
  InstalledShard* shard() const { return released() ? nullptr : shard_; }
  // Some shard, perhaps of an earlier generation, is not yet destroyed.
  bool has_shards() const { return !shards_.empty(); }

  // Retires the shard. Members are let in as before, and hear nothing.
  void Release();
  bool released() const { return released_; }
  Patience& patience() { return patience_; }  // of a job that is released, with those connected
  // Lets nobody in any more.
  void Close();
  bool open() const { return open_; }

  // ---- links, which stay where they are until they are removed

  // Of one who connected; a second link of a member takes the place of the first. kUnknownJob,
  // kWrongRank: there is no such member, and the caller disconnects him.
  RefusalReason Join(PeerId peer, const LinkIdentity& who);
  // Of a member to whom nobody is connected.
  void Add(PeerId peer, const LinkIdentity& who);
  // Disconnects. When this returns, memory that the peer was sending to is free.
  void Remove(const Link& link);
  void RemoveIf(absl::FunctionRef<bool(const Link&)> which);
  // All of this generation and those before, also those of peers who stand still.
  void CutOffAll();
  bool empty() const { return links_.empty(); }
  // Removes those that hold up the end of `shard`. One who has gone on to a later generation is not
  // cut off for that: if he stands still, he holds up that one as well.
  void CutOff(const InstalledShard& shard);

  // ---- messages; `header` bears this job's number and the rank of its sender in its generation

  // Why the shard does not take a message of a worker; kNone: it is there and does.
  RefusalReason Judge(const Link& link, const WireHeader& header) const;
  // The shard, where somebody speaks to it in his own generation; else null.
  InstalledShard* Addressed(const Link& link, const WireHeader& header) const;
  // The shard that has named memory for a payload: also one that was retired meanwhile, and waits
  // for it.
  InstalledShard& Placed(const WireHeader& header) const;
  // After a HELLO that is to be taken, see Judge(). If it is of a later generation than the link's,
  // its owner comes along to that, and has the rank there that he says: who knows the job's token
  // could as well have connected with it.
  void Greet(Link& link, const WireHeader& hello);

  // Where shard 0's decision of `bytes` bytes is to be placed; nowhere for more than any has.
  // Decisions take turns in a few places: shard 0 makes the next one when all have had the last.
  absl::Span<std::byte> PlaceDecision(uint64_t bytes);

 private:
  static constexpr size_t kDecisionBytesMax = limits::kWorkersMax / 8 + 8;  // a bit for each rank
  static constexpr size_t kDecisions = 4;

  void Remove(const Link& link, void (Transport::*end)(PeerId));
  void RemoveFrom(const LinkIdentity& who);  // whoever has that member's seat

  Transport* const transport_;
  Index& index_;
  const uint64_t job_;
  const SessionToken token_;
  uint32_t generation_ = 0;
  InstalledShard* shard_ = nullptr;      // of that generation, until it is destroyed
  std::vector<InstalledShard*> shards_;  // it and earlier ones
  bool open_ = false;
  bool released_ = false;
  Patience patience_;
  absl::node_hash_map<PeerId, Link> links_;
  std::array<std::byte, kDecisions * kDecisionBytesMax> decisions_;
  size_t next_decision_ = 0;
};

}  // namespace muster
