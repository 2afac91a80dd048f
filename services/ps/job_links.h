// Who is connected to a shard thread for one job.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "absl/types/span.h"
#include "lib/limits/limits.h"
#include "lib/transport/session.h"
#include "lib/transport/transport.h"

namespace muster {

class InstalledShard;

// The links of one job at one shard thread and the session that lets their owners in. What a plan
// fixes, such as who has which rank, is InstalledShard's.
//
// Of the transport's thread. The transport is not called by the destructor: it may be gone by then,
// and has to be where links are left, since payloads may be under way into memory of this.
class JobLinks {
 public:
  // Who is at the other end of a link.
  struct Link {
    JobLinks* job;
    PeerId peer;
    LinkIdentity who;
    bool greeted = false;  // has said HELLO
    bool breach = false;   // said what is not his to say, and is about to be cut off
  };

  JobLinks(Transport* transport, uint64_t job, uint32_t generation, const SessionToken& token);
  JobLinks(const JobLinks&) = delete;
  JobLinks& operator=(const JobLinks&) = delete;

  // Lets members of the session in, who then have to be added; lets nobody in any more.
  void Open();
  void Close();

  uint64_t job() const { return job_; }
  uint32_t generation() const { return generation_; }

  // The shard that they are connected to.
  InstalledShard& shard() const { return *shard_; }
  void set_shard(InstalledShard* shard) { shard_ = shard; }

  // The link stays where it is until it is removed.
  Link& Add(PeerId peer, const LinkIdentity& who);
  // Also disconnects the peer: when this returns, memory that it was sending to is free.
  void Remove(PeerId peer);
  std::vector<PeerId> peers() const;

  // Where shard 0's decision of `bytes` bytes is to be placed; nowhere for more than any has.
  // Decisions take turns in a few places: shard 0 makes the next one when all have had the last.
  absl::Span<std::byte> PlaceDecision(uint64_t bytes);

 private:
  static constexpr size_t kDecisionBytesMax = limits::kWorkersMax / 8 + 8;  // a bit for each rank
  static constexpr size_t kDecisions = 4;

  Transport* const transport_;
  const uint64_t job_;
  const uint32_t generation_;
  const SessionToken token_;
  InstalledShard* shard_ = nullptr;
  absl::node_hash_map<PeerId, Link> links_;
  std::array<std::byte, kDecisions * kDecisionBytesMax> decisions_;
  size_t next_decision_ = 0;
};

}  // namespace muster
