// Who is connected to a shard thread for one job.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "absl/types/span.h"
#include "lib/limits/limits.h"
#include "lib/transport/session.h"
#include "lib/transport/transport.h"

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

  JobLinks(Transport* transport, uint64_t job, const SessionToken& token);
  JobLinks(const JobLinks&) = delete;
  JobLinks& operator=(const JobLinks&) = delete;

  uint64_t job() const { return job_; }
  const SessionToken& token() const { return token_; }

  // Lets in members of this generation, instead of those of the one before, who then have to be
  // added. They belong to `shard`.
  void Open(uint32_t generation, InstalledShard* shard);
  // Lets nobody in any more.
  void Close();
  bool open() const { return open_; }
  // That was opened last.
  uint32_t generation() const { return generation_; }
  // Of that generation; null when it is destroyed.
  InstalledShard* shard() const { return shard_; }
  void ShardDestroyed() { shard_ = nullptr; }

  // The job was released here, and no other generation has been opened.
  bool released() const { return released_at_.has_value(); }
  Clock::time_point released_at() const { return *released_at_; }
  void Release();

  // The link stays where it is until it is removed.
  Link& Add(PeerId peer, const LinkIdentity& who);
  // Also disconnects the peer: when this returns, memory that it was sending to is free.
  void Remove(PeerId peer);
  bool empty() const { return links_.empty(); }
  std::vector<PeerId> peers() const;

  // Where shard 0's decision of `bytes` bytes is to be placed; nowhere for more than any has.
  // Decisions take turns in a few places: shard 0 makes the next one when all have had the last.
  absl::Span<std::byte> PlaceDecision(uint64_t bytes);

 private:
  static constexpr size_t kDecisionBytesMax = limits::kWorkersMax / 8 + 8;  // a bit for each rank
  static constexpr size_t kDecisions = 4;

  Transport* const transport_;
  const uint64_t job_;
  const SessionToken token_;
  uint32_t generation_ = 0;
  InstalledShard* shard_ = nullptr;
  bool open_ = false;
  std::optional<Clock::time_point> released_at_;
  absl::node_hash_map<PeerId, Link> links_;
  std::array<std::byte, kDecisions * kDecisionBytesMax> decisions_;
  size_t next_decision_ = 0;
};

}  // namespace muster
