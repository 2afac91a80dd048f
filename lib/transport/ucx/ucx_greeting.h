// What the two ends of a link over RDMA say to each other besides messages: the headers of UCX's
// active messages, and their proofs. docs/protocol.md has the bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/transport/session/session.h"

namespace muster {

// Which link of its receiver something belongs to. The receiver has made it up, of random bytes,
// and told it to nobody but the sender.
using LinkTag = std::array<std::byte, 16>;

// "I am `identity`, and what you send to me is to have this tag." Comes with the sealed address of
// the connector as its payload.
struct UcxJoin {
  static constexpr size_t kBytes = 72;
  using Bytes = std::array<std::byte, kBytes>;

  LinkTag tag = {};
  LinkIdentity identity;

  // With the proof that `token` is known to who is at the address `from`, for who is at `to`: it
  // fits no other pair.
  Bytes Encode(const SessionToken& token, absl::string_view from, absl::string_view to) const;
  // Nothing: these bytes are none.
  static std::optional<UcxJoin> Decode(absl::Span<const std::byte> bytes);
  // Whether `bytes`, which Decode() took, have the proof.
  static bool IsProven(absl::Span<const std::byte> bytes, const SessionToken& token,
                       absl::string_view from, absl::string_view to);
};

// A word about a link.
struct UcxControl {
  enum class Kind : uint64_t {
    kWelcome = 1,  // to a connector, with the acceptor's tag and proof
    kRefused = 2,
    kReady = 3,  // to an acceptor: messages may come
    kBye = 4,
  };
  static constexpr size_t kBytes = 72;
  using Bytes = std::array<std::byte, kBytes>;

  LinkTag to = {};
  Kind kind;
  LinkTag own = {};                // of a WELCOME, else zeros; likewise the proof
  SessionToken::Proof proof = {};  // see ProveWelcome()

  Bytes Encode() const;
  // Nothing: these bytes are none. `kind` may be one that does not exist.
  static std::optional<UcxControl> Decode(absl::Span<const std::byte> bytes);
};

// That an acceptor knows `token` and lets in `identity`, on the link with these tags.
SessionToken::Proof ProveWelcome(const SessionToken& token, const LinkIdentity& identity,
                                 const LinkTag& connector, const LinkTag& acceptor);
bool IsWelcomeProven(const SessionToken::Proof& proof, const SessionToken& token,
                     const LinkIdentity& identity, const LinkTag& connector,
                     const LinkTag& acceptor);

}  // namespace muster
