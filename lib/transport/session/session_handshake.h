// How the two ends of a connection between data ports prove to each other that they are of one
// session, before anything else is said. docs/protocol.md has the bytes.
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

// What protects the data plane. Both ends of a connection must have the same.
enum class DataSecurity : uint8_t {
  kNone = 0,     // nothing: whoever reaches the port is believed
  kAuth = 1,     // both ends prove that they know the session's token; the data travels as it is
  kEncrypt = 2,  // besides, TLS 1.3 with a key of that token
};
absl::string_view NameOf(DataSecurity security);  // "none", "auth", "encrypt"

// What a connector says of itself and of what it wants.
struct LinkHello {
  LinkIdentity who;
  uint64_t port = 0;                 // id of the data port that it believes to talk to
  uint32_t transport = 0;            // number of a transport behind that port
  std::array<std::byte, 16> link{};  // chosen at random: connections with the same are one link
  uint32_t connection = 0;           // of the link
  bool checksums = false;            // wanted behind each payload

  friend bool operator==(const LinkHello&, const LinkHello&) = default;
};

// PERMISSION_DENIED, with one text whatever the reason: a stranger learns nothing by it.
absl::Status NotLetIn();

// Both sides take bytes and give bytes; they know no socket and no clock. The owner reads no more
// than wants() bytes, so that what follows the handshake stays in the socket.
//
//   connector            acceptor
//   hello (96)      ->                  nonce of the connector
//                   <-   challenge (72) nonce of the acceptor, its proof
//   proof (32)      ->
//                   <-   verdict (8)
//
// A proof is HMAC-SHA256, with the token as key, of a label of its own and of all that was said
// before: it fits neither another handshake nor the other direction.
class SessionHandshake {
 public:
  static constexpr size_t kPrologueBytes = 8;
  static constexpr size_t kHelloBytes = 96;
  static constexpr size_t kChallengeBytes = 72;
  static constexpr size_t kProofBytes = 32;
  static constexpr size_t kVerdictBytes = 8;

  // How many more bytes it can use now; 0: none.
  size_t wants() const { return wanted_ - have_; }
  // What is to be sent now; empty: nothing. Gives it once; valid until the next call of anything.
  absl::Span<const std::byte> TakeReply();
  // OK until it failed. Nothing more is to be read then; a reply may be left to be sent.
  const absl::Status& fault() const { return fault_; }
  // Whether payloads are followed by a checksum. Known after the challenge.
  bool checksums() const { return checksums_; }
  // A key that only these two ends know, and only of this connection. After both have proved.
  SessionToken::Proof TlsKey() const;

 protected:
  explicit SessionHandshake(DataSecurity security) : security_(security) {}
  void Fail(absl::Status fault);
  // Adds to the record that is being read; whether it is whole.
  bool Gather(absl::Span<const std::byte>& bytes);
  void Expect(size_t bytes);  // the next record
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
  // The first reply is there at once.
  HandshakeConnector(const LinkHello& hello, const SessionToken& token, DataSecurity security);

  // At most wants() bytes.
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
  // The token of the session that it names; none: no such session is open, or not at that
  // transport or port.
  using FindSession = absl::FunctionRef<std::optional<SessionToken>(const LinkHello&)>;

  // Checksums are used where one of the two ends wants them.
  HandshakeAcceptor(DataSecurity security, bool checksums);

  // At most wants() bytes. fault() is INVALID_ARGUMENT for what is no hello, FAILED_PRECONDITION
  // for another version or security, PERMISSION_DENIED for a wrong proof.
  void Take(absl::Span<const std::byte> bytes, FindSession find);
  // Whether the connector has proved to be who hello() says. The owner then calls LetIn().
  bool proven() const { return state_ == State::kProven; }
  void LetIn();     // the reply is the good verdict
  void TurnAway();  // the reply is that of a wrong proof

  // Whether it waits for a proof that nobody can give: the connector named no session that is open.
  bool awaits_no_proof() const { return state_ == State::kProof && !known_; }
  // Whether it waits for one of who named a session that is open, as members alone can.
  bool awaits_proof() const { return state_ == State::kProof && known_; }
  // After the challenge was made.
  const LinkHello& hello() const { return hello_; }
  // That of the session, of which the connector has proved to be.
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
  bool known_ = false;  // the session
  LinkHello hello_;
};

}  // namespace muster
