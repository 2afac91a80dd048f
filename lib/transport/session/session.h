// Who is at the other end of a link, and how he proves it.
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

// The secret that the members of a job share, for one generation or several: it comes with the
// plan, over the control plane, and is never printed. The coordinator's store keeps it, with the
// plan.
class SessionToken {
 public:
  static constexpr size_t kBytes = 16;
  using Proof = std::array<std::byte, 32>;

  SessionToken() = default;  // all zero: of nobody, for tests
  // A new one of the machine's entropy.
  static SessionToken Random();
  // `bytes` as in JobPlan.session_token. INVALID_ARGUMENT for another size.
  static absl::StatusOr<SessionToken> FromBytes(absl::string_view bytes);

  std::string ToBytes() const;
  // HMAC-SHA256 (RFC 2104) of `message` with this token as the key.
  Proof Prove(absl::Span<const std::byte> message) const;
  // Whether `proof` is that of `message`. Takes as long for every wrong proof.
  bool Believes(absl::Span<const std::byte> message, absl::Span<const std::byte> proof) const;
  // Takes as long for every other token.
  bool operator==(const SessionToken& other) const;

 private:
  std::array<std::byte, kBytes> bytes_ = {};
};

// A backup is what its shard connects to: nobody introduces himself as one.
enum class LinkRole : uint8_t { kWorker = 1, kShard = 2, kBackup = 3 };

// Who speaks on a link: a worker or a shard of one generation of a job.
struct LinkIdentity {
  uint64_t job = 0;  // JobPlan.job_number
  uint32_t generation = 0;
  LinkRole role = LinkRole::kWorker;
  uint32_t index = 0;  // rank of the worker, index of the shard

  friend bool operator==(const LinkIdentity&, const LinkIdentity&) = default;
};

// "rank 3 of job 42, generation 1"
std::string NameOf(const LinkIdentity& identity);

// With what a member introduces itself when it connects.
struct LinkCredentials {
  LinkIdentity self;
  SessionToken token;
};

// The sessions in which a transport takes part: whoever connects must prove to be of one of them.
// Of a job at most one generation is open. Thread-compatible.
class SessionTable {
 public:
  // Replaces one of the same job, of whichever generation.
  void Open(uint64_t job, uint32_t generation, const SessionToken& token);
  // Does nothing where another generation of the job is open.
  void Close(uint64_t job, uint32_t generation);
  // Null: that generation is not open. Valid until the next change.
  const SessionToken* Find(uint64_t job, uint32_t generation) const;
  // Likewise, but also where a later generation is open: for what belongs to a link that was let in
  // before that.
  const SessionToken* FindSince(uint64_t job, uint32_t generation) const;

 private:
  struct Session {
    uint32_t generation;
    SessionToken token;
  };
  absl::flat_hash_map<uint64_t, Session> sessions_;  // by job
};

}  // namespace muster
