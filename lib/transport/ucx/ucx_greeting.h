// The control messages between the two ends of an RDMA link: the headers of UCX's active messages,
// and their proofs. docs/protocol.md has the bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/transport/session/session.h"

namespace muster {

// Identifies a link at its receiver. The receiver makes it of random bytes and reveals it only to
// the sender.
using LinkTag = std::array<std::byte, 16>;

// The connecting side's message: "I am `identity`; put this tag on everything you send me." Its
// payload is the sealed address of the connecting side.
struct UcxJoin {
  static constexpr size_t kBytes = 72;
  using Bytes = std::array<std::byte, kBytes>;

  LinkTag tag = {};
  LinkIdentity identity;

  // Returns the bytes, with the proof that the peer at the address `from` knows `token`. It is
  // addressed to the peer at `to` and fits no other pair of addresses.
  Bytes Encode(const SessionToken& token, absl::string_view from, absl::string_view to) const;
  // Returns nothing if the bytes are no UcxJoin.
  static std::optional<UcxJoin> Decode(absl::Span<const std::byte> bytes);
  // Whether `bytes`, which Decode() accepted, contain the proof.
  static bool IsProven(absl::Span<const std::byte> bytes, const SessionToken& token,
                       absl::string_view from, absl::string_view to);
};

// A control message about a link.
struct UcxControl {
  enum class Kind : uint64_t {
    kWelcome = 1,  // to a connecting side, with the accepting side's tag and proof
    kRefused = 2,
    kReady = 3,  // to an accepting side: it may send messages now
    kBye = 4,
  };
  static constexpr size_t kBytes = 72;
  using Bytes = std::array<std::byte, kBytes>;

  LinkTag to = {};
  Kind kind;
  LinkTag own = {};                // in a WELCOME, else zeros; the proof too
  SessionToken::Proof proof = {};  // see ProveWelcome()

  Bytes Encode() const;
  // Returns nothing if the bytes have the wrong size. `kind` may be an unknown one.
  static std::optional<UcxControl> Decode(absl::Span<const std::byte> bytes);
};

// The proof that an accepting side knows `token` and accepts `identity`, on the link with these
// tags.
SessionToken::Proof ProveWelcome(const SessionToken& token, const LinkIdentity& identity,
                                 const LinkTag& connector, const LinkTag& acceptor);
bool IsWelcomeProven(const SessionToken::Proof& proof, const SessionToken& token,
                     const LinkIdentity& identity, const LinkTag& connector,
                     const LinkTag& acceptor);

}  // namespace muster
