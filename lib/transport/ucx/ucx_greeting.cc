#include "lib/transport/ucx/ucx_greeting.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr size_t kTagBytes = sizeof(LinkTag);
constexpr size_t kIdentityBytes = 24;
constexpr size_t kKindBytes = 8;
constexpr size_t kProofBytes = sizeof(SessionToken::Proof);
static_assert(UcxJoin::kBytes == kTagBytes + kIdentityBytes + kProofBytes);
static_assert(UcxControl::kBytes == kTagBytes + kKindBytes + kTagBytes + kProofBytes);

void PutNumber(std::byte* to, uint64_t value, size_t width) {
  for (size_t i = 0; i < width; ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

uint64_t GetNumber(const std::byte* from, size_t width) {
  uint64_t value = 0;
  for (size_t i = 0; i < width; ++i) value |= static_cast<uint64_t>(from[i]) << (8 * i);
  return value;
}

void PutIdentity(std::byte* to, const LinkIdentity& identity) {
  PutNumber(to, identity.job, 8);
  PutNumber(to + 8, identity.generation, 4);
  PutNumber(to + 12, identity.index, 4);
  PutNumber(to + 16, static_cast<uint64_t>(identity.role), 8);
}

// Returns nothing if the bytes are no identity.
std::optional<LinkIdentity> GetIdentity(const std::byte* from) {
  const uint64_t role = GetNumber(from + 16, 8);
  if (role != static_cast<uint64_t>(LinkRole::kWorker) &&
      role != static_cast<uint64_t>(LinkRole::kShard)) {
    return std::nullopt;
  }
  return LinkIdentity{.job = GetNumber(from, 8),
                      .generation = static_cast<uint32_t>(GetNumber(from + 8, 4)),
                      .role = static_cast<LinkRole>(role),
                      .index = static_cast<uint32_t>(GetNumber(from + 12, 4))};
}

absl::Span<const std::byte> BytesOf(absl::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

absl::string_view TextOf(absl::Span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The text that the proof of a JOIN covers: `join` without the proof, and both addresses. `from`
// has its length in front, so that no two pairs of addresses give the same text.
std::string JoinStatement(absl::Span<const std::byte> join, absl::string_view from,
                          absl::string_view to) {
  std::byte length[8];
  PutNumber(length, from.size(), sizeof(length));
  return absl::StrCat("muster ucx 1 join", TextOf(join.first(kTagBytes + kIdentityBytes)),
                      TextOf(length), from, to);
}

std::string WelcomeStatement(const LinkIdentity& identity, const LinkTag& connector,
                             const LinkTag& acceptor) {
  std::byte encoded[kIdentityBytes];
  PutIdentity(encoded, identity);
  return absl::StrCat("muster ucx 1 welcome", TextOf(encoded), TextOf(connector), TextOf(acceptor));
}

}  // namespace

UcxJoin::Bytes UcxJoin::Encode(const SessionToken& token, absl::string_view from,
                               absl::string_view to) const {
  Bytes bytes;
  std::memcpy(bytes.data(), tag.data(), kTagBytes);
  PutIdentity(bytes.data() + kTagBytes, identity);
  const SessionToken::Proof proof = token.Prove(BytesOf(JoinStatement(bytes, from, to)));
  std::memcpy(bytes.data() + kTagBytes + kIdentityBytes, proof.data(), kProofBytes);
  return bytes;
}

std::optional<UcxJoin> UcxJoin::Decode(absl::Span<const std::byte> bytes) {
  if (bytes.size() != kBytes) return std::nullopt;
  const std::optional<LinkIdentity> identity = GetIdentity(bytes.data() + kTagBytes);
  if (!identity.has_value()) return std::nullopt;
  UcxJoin join = {.identity = *identity};
  std::memcpy(join.tag.data(), bytes.data(), kTagBytes);
  return join;
}

bool UcxJoin::IsProven(absl::Span<const std::byte> bytes, const SessionToken& token,
                       absl::string_view from, absl::string_view to) {
  return token.Believes(BytesOf(JoinStatement(bytes, from, to)), bytes.last(kProofBytes));
}

UcxControl::Bytes UcxControl::Encode() const {
  Bytes bytes;
  std::byte* at = bytes.data();
  std::memcpy(at, to.data(), kTagBytes);
  PutNumber(at += kTagBytes, static_cast<uint64_t>(kind), kKindBytes);
  std::memcpy(at += kKindBytes, own.data(), kTagBytes);
  std::memcpy(at + kTagBytes, proof.data(), kProofBytes);
  return bytes;
}

std::optional<UcxControl> UcxControl::Decode(absl::Span<const std::byte> bytes) {
  if (bytes.size() != kBytes) return std::nullopt;
  const std::byte* at = bytes.data();
  UcxControl control;
  std::memcpy(control.to.data(), at, kTagBytes);
  control.kind = static_cast<Kind>(GetNumber(at += kTagBytes, kKindBytes));
  std::memcpy(control.own.data(), at += kKindBytes, kTagBytes);
  std::memcpy(control.proof.data(), at + kTagBytes, kProofBytes);
  return control;
}

SessionToken::Proof ProveWelcome(const SessionToken& token, const LinkIdentity& identity,
                                 const LinkTag& connector, const LinkTag& acceptor) {
  return token.Prove(BytesOf(WelcomeStatement(identity, connector, acceptor)));
}

bool IsWelcomeProven(const SessionToken::Proof& proof, const SessionToken& token,
                     const LinkIdentity& identity, const LinkTag& connector,
                     const LinkTag& acceptor) {
  return token.Believes(BytesOf(WelcomeStatement(identity, connector, acceptor)), proof);
}

}  // namespace muster
