#include "lib/transport/session/session_handshake.h"

#include <glog/logging.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr uint32_t kConnectorMagic = 0x4153554d;  // "MUSA"
constexpr uint32_t kAcceptorMagic = 0x4253554d;   // "MUSB"
constexpr uint32_t kVerdictMagic = 0x5653554d;    // "MUSV"
constexpr uint16_t kVersion = 1;

// The offset of each field. Hello and challenge both start with a prologue.
enum Offset : size_t {
  kMagicAt = 0,
  kVersionAt = 4,
  kSecurityAt = 6,
  kChecksumsAt = 7,

  kPortAt = 8,
  kJobAt = 16,
  kGenerationAt = 24,
  kRoleAt = 28,
  kIndexAt = 32,
  kTransportAt = 36,
  kConnectionAt = 40,
  kLinkAt = 48,
  kNonceAt = 64,

  kChallengeNonceAt = 8,
  kChallengeProofAt = 40,

  kVerdictAt = 4,
};
constexpr size_t kNonceBytes = 32;

constexpr absl::string_view kAcceptorLabel = "muster acceptor";
constexpr absl::string_view kConnectorLabel = "muster connector";
constexpr absl::string_view kTlsLabel = "muster tls";

template <typename T>
void Put(std::byte* bytes, size_t at, T value) {
  static_assert(std::is_unsigned_v<T>);
  for (size_t i = 0; i < sizeof(T); ++i) bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
}

template <typename T>
T Get(const std::byte* bytes, size_t at) {
  static_assert(std::is_unsigned_v<T>);
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(std::to_integer<T>(bytes[at + i]) << (8 * i));
  }
  return value;
}

void PutNonce(std::byte* bytes) {
  CHECK_EQ(RAND_bytes(reinterpret_cast<unsigned char*>(bytes), kNonceBytes), 1) << "no entropy";
}

void PutPrologue(std::byte* bytes, uint32_t magic, DataSecurity security, bool checksums) {
  Put(bytes, kMagicAt, magic);
  Put(bytes, kVersionAt, kVersion);
  Put(bytes, kSecurityAt, static_cast<uint8_t>(security));
  Put(bytes, kChecksumsAt, static_cast<uint8_t>(checksums));
}

// Checks the prologue of the other end.
absl::Status CheckPrologue(const std::byte* bytes, uint32_t magic, DataSecurity security) {
  if (Get<uint32_t>(bytes, kMagicAt) != magic) {
    return absl::InvalidArgumentError("the peer is no Muster data port");
  }
  if (const auto version = Get<uint16_t>(bytes, kVersionAt); version != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("data ports of different versions: ", kVersion, " here, ", version,
                     " there; run the same release on both"));
  }
  const auto theirs = Get<uint8_t>(bytes, kSecurityAt);
  if (theirs != static_cast<uint8_t>(security)) {
    return absl::FailedPreconditionError(
        absl::StrCat("data ports of different security: ", NameOf(security), " here, ",
                     NameOf(static_cast<DataSecurity>(theirs)), " there; give both the same"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view NameOf(DataSecurity security) {
  switch (security) {
    case DataSecurity::kNone:
      return "none";
    case DataSecurity::kAuth:
      return "auth";
    case DataSecurity::kEncrypt:
      return "encrypt";
  }
  return "an unknown one";
}

absl::Status NotLetIn() {
  return absl::PermissionDeniedError(
      "not let in: no such session is open there, or its token differs");
}

absl::Span<const std::byte> SessionHandshake::TakeReply() {
  return absl::MakeConstSpan(reply_).first(std::exchange(reply_bytes_, 0));
}

SessionToken::Proof SessionHandshake::TlsKey() const { return Prove(kTlsLabel); }

void SessionHandshake::Fail(absl::Status fault) {
  fault_ = std::move(fault);
  wanted_ = have_ = 0;
}

bool SessionHandshake::Gather(absl::Span<const std::byte>& bytes) {
  const size_t taken = std::min(bytes.size(), wants());
  std::copy_n(bytes.begin(), taken, record_.begin() + have_);
  have_ += taken;
  bytes.remove_prefix(taken);
  return have_ == wanted_;
}

void SessionHandshake::Expect(size_t bytes) {
  wanted_ = bytes;
  have_ = 0;
}

void SessionHandshake::Append(absl::Span<const std::byte> bytes) {
  CHECK_LE(transcript_bytes_ + bytes.size(), transcript_.size());
  std::ranges::copy(bytes, transcript_.begin() + transcript_bytes_);
  transcript_bytes_ += bytes.size();
}

SessionToken::Proof SessionHandshake::Prove(absl::string_view label) const {
  std::array<std::byte, 32 + kTranscriptMax> message;
  std::memcpy(message.data(), label.data(), label.size());
  std::memcpy(message.data() + label.size(), transcript_.data(), transcript_bytes_);
  return token_.Prove(absl::MakeConstSpan(message).first(label.size() + transcript_bytes_));
}

bool SessionHandshake::Believes(absl::string_view label, absl::Span<const std::byte> proof) const {
  std::array<std::byte, 32 + kTranscriptMax> message;
  std::memcpy(message.data(), label.data(), label.size());
  std::memcpy(message.data() + label.size(), transcript_.data(), transcript_bytes_);
  return token_.Believes(absl::MakeConstSpan(message).first(label.size() + transcript_bytes_),
                         proof);
}

HandshakeConnector::HandshakeConnector(const LinkHello& hello, const SessionToken& token,
                                       DataSecurity security)
    : SessionHandshake(security), checksums_wanted_(hello.checksums) {
  token_ = token;
  reply_.fill(std::byte{0});
  std::byte* bytes = reply_.data();
  PutPrologue(bytes, kConnectorMagic, security, hello.checksums);
  Put(bytes, kPortAt, hello.port);
  Put(bytes, kJobAt, hello.who.job);
  Put(bytes, kGenerationAt, hello.who.generation);
  Put(bytes, kRoleAt, static_cast<uint8_t>(hello.who.role));
  Put(bytes, kIndexAt, hello.who.index);
  Put(bytes, kTransportAt, hello.transport);
  Put(bytes, kConnectionAt, hello.connection);
  std::ranges::copy(hello.link, bytes + kLinkAt);
  PutNonce(bytes + kNonceAt);
  reply_bytes_ = kHelloBytes;
  Append(reply_);
  Expect(kPrologueBytes);
}

void HandshakeConnector::Take(absl::Span<const std::byte> bytes) {
  CHECK_LE(bytes.size(), wants());
  if (bytes.empty() || !Gather(bytes)) return;
  switch (state_) {
    case State::kPrologue:
      return TakePrologue();
    case State::kChallenge:
      return TakeChallenge();
    case State::kVerdict:
      return TakeVerdict();
    case State::kLetIn:
      return;
  }
}

void HandshakeConnector::TakePrologue() {
  const std::byte* bytes = record().data();
  if (absl::Status fits = CheckPrologue(bytes, kAcceptorMagic, security_); !fits.ok()) {
    return Fail(std::move(fits));
  }
  checksums_ = std::to_integer<int>(bytes[kChecksumsAt]) == 1;
  if (std::to_integer<int>(bytes[kChecksumsAt]) > 1 || (checksums_wanted_ && !checksums_)) {
    return Fail(absl::InvalidArgumentError("the data port there offers no checksums"));
  }
  Append(record());
  Expect(kChallengeBytes - kPrologueBytes);
  state_ = State::kChallenge;
}

void HandshakeConnector::TakeChallenge() {
  const auto nonce = record().first(kNonceBytes);
  const auto proof = record().subspan(kNonceBytes);
  Append(nonce);
  // The acceptor proves itself first. The connector sends its own proof only to a port that knows
  // the token.
  if (security_ != DataSecurity::kNone && !Believes(kAcceptorLabel, proof)) {
    return Fail(NotLetIn());
  }
  Append(proof);
  const SessionToken::Proof mine =
      security_ == DataSecurity::kNone ? SessionToken::Proof{} : Prove(kConnectorLabel);
  std::ranges::copy(mine, reply_.begin());
  reply_bytes_ = kProofBytes;
  Expect(kVerdictBytes);
  state_ = State::kVerdict;
}

void HandshakeConnector::TakeVerdict() {
  const std::byte* bytes = record().data();
  const auto verdict = Get<uint32_t>(bytes, kVerdictAt);
  if (const auto magic = Get<uint32_t>(bytes, kMagicAt); magic != kVerdictMagic || verdict > 1) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("the data port there sent an invalid verdict: magic 0x", absl::Hex(magic),
                     ", value ", verdict, "; expected magic 0x", absl::Hex(kVerdictMagic),
                     ", value 0 or 1. Run the same version everywhere; look for a proxy between")));
  }
  if (verdict != 0) return Fail(NotLetIn());
  Expect(0);
  state_ = State::kLetIn;
}

HandshakeAcceptor::HandshakeAcceptor(DataSecurity security, bool checksums)
    : SessionHandshake(security), checksums_wanted_(checksums) {
  Expect(kPrologueBytes);
}

void HandshakeAcceptor::Take(absl::Span<const std::byte> bytes, FindSession find) {
  CHECK_LE(bytes.size(), wants());
  if (bytes.empty() || !Gather(bytes)) return;
  switch (state_) {
    case State::kPrologue:
      return TakePrologue();
    case State::kHello:
      return TakeHello(find);
    case State::kProof:
      return TakeProof();
    case State::kProven:
      return;
  }
}

void HandshakeAcceptor::TakePrologue() {
  absl::Status fits = CheckPrologue(record().data(), kConnectorMagic, security_);
  // A peer of another version or security gets a challenge without a proof. Its prologue says what
  // this end has, so that the peer can report it.
  if (absl::IsFailedPrecondition(fits)) Challenge(/*proves=*/false);
  if (!fits.ok()) return Fail(std::move(fits));
  const int wish = std::to_integer<int>(record()[kChecksumsAt]);
  if (wish > 1) return Fail(absl::InvalidArgumentError("a hello with an unknown checksum"));
  hello_.checksums = wish == 1;
  checksums_ = checksums_wanted_ || hello_.checksums;
  Append(record());
  Expect(kHelloBytes - kPrologueBytes);
  state_ = State::kHello;
}

void HandshakeAcceptor::TakeHello(FindSession find) {
  const std::byte* bytes = record().data();
  constexpr size_t kBefore = kPrologueBytes;  // those bytes were taken before
  // The role is read together with the three zero bytes behind it.
  const auto role = Get<uint32_t>(bytes, kRoleAt - kBefore);
  if ((role != static_cast<uint8_t>(LinkRole::kWorker) &&
       role != static_cast<uint8_t>(LinkRole::kShard)) ||
      Get<uint32_t>(bytes, kConnectionAt + 4 - kBefore) != 0) {
    return Fail(absl::InvalidArgumentError("a hello of an unknown role"));
  }
  hello_.who = {.job = Get<uint64_t>(bytes, kJobAt - kBefore),
                .generation = Get<uint32_t>(bytes, kGenerationAt - kBefore),
                .role = static_cast<LinkRole>(role),
                .index = Get<uint32_t>(bytes, kIndexAt - kBefore)};
  hello_.port = Get<uint64_t>(bytes, kPortAt - kBefore);
  hello_.transport = Get<uint32_t>(bytes, kTransportAt - kBefore);
  hello_.connection = Get<uint32_t>(bytes, kConnectionAt - kBefore);
  std::copy_n(bytes + kLinkAt - kBefore, hello_.link.size(), hello_.link.begin());
  Append(record());
  // If the session is not open, the proof is made with a random key. So the peer cannot tell
  // whether the session exists.
  const SessionToken nobodys = SessionToken::Random();
  const std::optional<SessionToken> token = find(hello_);
  known_ = token.has_value();
  token_ = known_ ? *token : nobodys;
  Challenge(/*proves=*/true);
  Expect(kProofBytes);
  state_ = State::kProof;
}

void HandshakeAcceptor::Challenge(bool proves) {
  reply_.fill(std::byte{0});
  PutPrologue(reply_.data(), kAcceptorMagic, security_, checksums_);
  reply_bytes_ = kChallengeBytes;
  if (!proves) return;
  PutNonce(reply_.data() + kChallengeNonceAt);
  // The nonce joins the transcript before the proof is made, so that the proof covers it.
  Append(absl::MakeConstSpan(reply_).first(kChallengeProofAt));
  if (security_ != DataSecurity::kNone) {
    std::ranges::copy(Prove(kAcceptorLabel), reply_.begin() + kChallengeProofAt);
  }
  Append(absl::MakeConstSpan(reply_).subspan(kChallengeProofAt, kProofBytes));
}

void HandshakeAcceptor::TakeProof() {
  const bool right = security_ == DataSecurity::kNone || Believes(kConnectorLabel, record());
  // Every proof is accepted if there is no security, but the session must still be open.
  if (!right || !known_) return TurnAway();
  Expect(0);
  state_ = State::kProven;
}

void HandshakeAcceptor::LetIn() {
  CHECK(proven());
  Verdict(true);
}

void HandshakeAcceptor::TurnAway() {
  Verdict(false);
  Fail(NotLetIn());
}

void HandshakeAcceptor::Verdict(bool let_in) {
  Put(reply_.data(), kMagicAt, kVerdictMagic);
  Put(reply_.data(), kVerdictAt, uint32_t{let_in ? 0u : 1u});
  reply_bytes_ = kVerdictBytes;
}

}  // namespace muster
