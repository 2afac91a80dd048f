// The handshake in which two data ports prove to each other that they belong to one session, before
// they exchange anything else. docs/protocol.md has the bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/transport/session/session.h"

namespace muster {

// The protection of the data plane. Both ends of a connection must use the same.
enum class DataSecurity : uint8_t {
  kNone = 0,     // no protection: every peer that reaches the port is believed
  kAuth = 1,     // both ends prove that they know the session's token; data travel in clear
  kEncrypt = 2,  // as kAuth, and TLS 1.3 with a key derived from the token
};
absl::string_view NameOf(DataSecurity security);  // "none", "auth", "encrypt"

// The identity and wishes that a connector sends.
struct LinkHello {
  LinkIdentity who;
  uint64_t port = 0;                 // id of the data port that it intends to reach
  uint32_t transport = 0;            // number of a transport behind that port
  std::array<std::byte, 16> link{};  // random: connections with the same value form one link
  uint32_t connection = 0;           // number of this connection in the link
  bool checksums = false;            // the connector wants a checksum behind each payload

  friend bool operator==(const LinkHello&, const LinkHello&) = default;
};

// Returns PERMISSION_DENIED, with the same text for every reason: an unauthenticated peer must
// learn nothing.
absl::Status NotLetIn();

// Both sides take bytes and return bytes; they know no socket and no clock. The owner reads at most
// wants() bytes, so that the bytes after the handshake stay in the socket.
//
//   connector            acceptor
//   hello (96)      ->                  nonce of the connector
//                   <-   challenge (72) nonce of the acceptor, its proof
//   proof (32)      ->
//                   <-   verdict (8)
//
// A proof is HMAC-SHA256 of a label and of all bytes exchanged before, with the token as the key.
// Each side has its own label. So a proof fits no other handshake and not the other direction.
class SessionHandshake {
 public:
  static constexpr size_t kPrologueBytes = 8;
  static constexpr size_t kHelloBytes = 96;
  static constexpr size_t kChallengeBytes = 72;
  static constexpr size_t kProofBytes = 32;
  static constexpr size_t kVerdictBytes = 8;

  // The number of bytes that it can take now; 0 if none.
  size_t wants() const { return wanted_ - have_; }
  // Returns the bytes to send now, or an empty span. Returns them only once. Valid until the next
  // call.
  absl::Span<const std::byte> TakeReply();
  // The reason why the handshake failed; OK until then. After a failure read nothing more, but send
  // the reply if there is one.
  const absl::Status& fault() const { return fault_; }
  // Whether a checksum follows each payload. Known after the challenge.
  bool checksums() const { return checksums_; }
  // A key that only these two ends know, different for each connection. Requires: both ends have
  // sent their proofs.
  SessionToken::Proof TlsKey() const;

 protected:
  explicit SessionHandshake(DataSecurity security) : security_(security) {}
  void Fail(absl::Status fault);
  // Adds `bytes` to the current record. Returns whether the record is complete.
  bool Gather(absl::Span<const std::byte>& bytes);
  void Expect(size_t bytes);  // starts the next record
  absl::Span<const std::byte> record() const { return absl::MakeConstSpan(record_).first(have_); }
  void Append(absl::Span<const std::byte> bytes);  // to the transcript
  SessionToken::Proof Prove(absl::string_view label) const;
  bool Believes(absl::string_view label, absl::Span<const std::byte> proof) const;

  const DataSecurity security_;
  SessionToken token_;
  bool checksums_ = false;
  std::array<std::byte, kHelloBytes> reply_;
  size_t reply_bytes_ = 0;

 private:
  static constexpr size_t kTranscriptMax = kHelloBytes + kChallengeBytes;

  absl::Status fault_;
  std::array<std::byte, kHelloBytes> record_;
  size_t have_ = 0, wanted_ = 0;
  std::array<std::byte, kTranscriptMax> transcript_;
  size_t transcript_bytes_ = 0;
};

class HandshakeConnector : public SessionHandshake {
 public:
  // Starts a handshake with this hello, which TakeReply() returns at once.
  HandshakeConnector(const LinkHello& hello, const SessionToken& token, DataSecurity security);

  // Takes the acceptor's next bytes. Requires: at most wants() bytes.
  void Take(absl::Span<const std::byte> bytes);
  bool let_in() const { return state_ == State::kLetIn; }

 private:
  enum class State { kPrologue, kChallenge, kVerdict, kLetIn };

  void TakePrologue();
  void TakeChallenge();
  void TakeVerdict();

  State state_ = State::kPrologue;
  bool checksums_wanted_;
};

class HandshakeAcceptor : public SessionHandshake {
 public:
  // Returns the token of the session that the hello names. Returns none if that session is not
  // open, or not at that transport or port.
  using FindSession = absl::FunctionRef<std::optional<SessionToken>(const LinkHello&)>;

  // Checksums are used if either end wants them.
  HandshakeAcceptor(DataSecurity security, bool checksums);

  // Takes the connector's next bytes. Requires: at most wants() bytes. Sets fault() to:
  // - INVALID_ARGUMENT if the bytes are no hello;
  // - FAILED_PRECONDITION for another version or security;
  // - PERMISSION_DENIED for a wrong proof, or if the hello names no open session.
  void Take(absl::Span<const std::byte> bytes, FindSession find);
  // Whether the connector has proved its identity, hello().who. The owner then calls LetIn() or
  // TurnAway().
  bool proven() const { return state_ == State::kProven; }
  void LetIn();     // the reply is a positive verdict
  void TurnAway();  // the reply is the same as for a wrong proof

  // Whether it waits for a proof that cannot exist: the connector named no open session.
  bool awaits_no_proof() const { return state_ == State::kProof && !known_; }
  // Whether it waits for the proof of a connector that named an open session, as only members can.
  bool awaits_proof() const { return state_ == State::kProof && known_; }
  // The connector's hello. Valid after the challenge was made.
  const LinkHello& hello() const { return hello_; }
  // The token of the session to which the connector has proved to belong.
  const SessionToken& token() const { return token_; }

 private:
  enum class State { kPrologue, kHello, kProof, kProven };

  void TakePrologue();
  void TakeHello(FindSession find);
  void TakeProof();
  void Challenge(bool proves);
  void Verdict(bool let_in);

  State state_ = State::kPrologue;
  const bool checksums_wanted_;
  bool known_ = false;  // the hello names an open session
  LinkHello hello_;
};

}  // namespace muster
