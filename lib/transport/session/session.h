// The identity of the peer at the other end of a link, and how it proves that identity.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace muster {

// The secret that the members of a job share, for one or more generations. It comes with the plan
// over the control plane. It is never printed. The coordinator's store keeps it with the plan.
class SessionToken {
 public:
  static constexpr size_t kBytes = 16;
  using Proof = std::array<std::byte, 32>;

  SessionToken() = default;  // all zero: the token of no job, for tests
  // Returns a new token from the machine's entropy.
  static SessionToken Random();
  // Returns the token that has these bytes, which come from JobPlan.session_token. Returns
  // INVALID_ARGUMENT for another size.
  static absl::StatusOr<SessionToken> FromBytes(absl::string_view bytes);

  std::string ToBytes() const;
  // Returns the HMAC-SHA256 (RFC 2104) of `message` with this token as the key.
  Proof Prove(absl::Span<const std::byte> message) const;
  // Whether `proof` is the proof of `message`. Takes the same time for every wrong proof.
  bool Believes(absl::Span<const std::byte> message, absl::Span<const std::byte> proof) const;
  // Whether the tokens are equal. Takes the same time for every other token.
  bool operator==(const SessionToken& other) const;

 private:
  std::array<std::byte, kBytes> bytes_ = {};
};

// The role of a member on a link. Shards connect to their replicas, and a replica connects to no
// peer. So no peer introduces itself as kReplica.
enum class LinkRole : uint8_t { kWorker = 1, kShard = 2, kReplica = 3 };

// The member that sends on a link: a worker or a shard of one generation of a job.
struct LinkIdentity {
  uint64_t job = 0;  // JobPlan.job_number; with replicas of shards, the number of the session
  uint32_t generation = 0;
  LinkRole role = LinkRole::kWorker;
  uint32_t index = 0;  // rank of the worker, index of the shard

  friend bool operator==(const LinkIdentity&, const LinkIdentity&) = default;
};

// Returns, for example, "rank 3 of job 42, generation 1".
std::string NameOf(const LinkIdentity& identity);

// The identity and secret with which a member introduces itself when it connects.
struct LinkCredentials {
  LinkIdentity self;
  SessionToken token;
};

// The sessions in which a transport takes part. A connecting peer must prove that it belongs to one
// of them. At most one generation of a job is open. Thread-compatible.
class SessionTable {
 public:
  // Replaces an open session of the same job, whatever its generation.
  void Open(uint64_t job, uint32_t generation, const SessionToken& token);
  // Closes the session. No-op if another generation of the job is open.
  void Close(uint64_t job, uint32_t generation);
  // Returns the token of the session; null if that generation is not open. Valid until the next
  // change.
  const SessionToken* Find(uint64_t job, uint32_t generation) const;
  // Finds the session of `generation` or of a later one. For connections of a link that was
  // accepted before the later generation was opened.
  const SessionToken* FindSince(uint64_t job, uint32_t generation) const;

 private:
  struct Session {
    uint32_t generation;
    SessionToken token;
  };
  absl::flat_hash_map<uint64_t, Session> sessions_;  // by job
};

}  // namespace muster
