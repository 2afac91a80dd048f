#include "lib/transport/session/session.h"

#include <glog/logging.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace muster {

SessionToken SessionToken::Random() {
  SessionToken token;
  CHECK_EQ(RAND_bytes(reinterpret_cast<unsigned char*>(token.bytes_.data()), kBytes), 1)
      << "no entropy";
  return token;
}

absl::StatusOr<SessionToken> SessionToken::FromBytes(absl::string_view bytes) {
  if (bytes.size() != kBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a session token of ", bytes.size(), " bytes instead of ", kBytes));
  }
  SessionToken token;
  std::memcpy(token.bytes_.data(), bytes.data(), kBytes);
  return token;
}

std::string SessionToken::ToBytes() const {
  return std::string(reinterpret_cast<const char*>(bytes_.data()), kBytes);
}

SessionToken::Proof SessionToken::Prove(absl::Span<const std::byte> message) const {
  Proof proof;
  unsigned size = 0;
  const unsigned char* made = HMAC(
      EVP_sha256(), bytes_.data(), kBytes, reinterpret_cast<const unsigned char*>(message.data()),
      message.size(), reinterpret_cast<unsigned char*>(proof.data()), &size);
  CHECK(made != nullptr && size == proof.size());
  return proof;
}

bool SessionToken::Believes(absl::Span<const std::byte> message,
                            absl::Span<const std::byte> proof) const {
  const Proof expected = Prove(message);
  return proof.size() == expected.size() &&
         CRYPTO_memcmp(proof.data(), expected.data(), expected.size()) == 0;
}

bool SessionToken::operator==(const SessionToken& other) const {
  return CRYPTO_memcmp(bytes_.data(), other.bytes_.data(), kBytes) == 0;
}

std::string NameOf(const LinkIdentity& identity) {
  return absl::StrCat(identity.role == LinkRole::kWorker ? "rank " : "shard ", identity.index,
                      " of job ", identity.job, ", generation ", identity.generation);
}

void SessionTable::Open(uint64_t job, uint32_t generation, const SessionToken& token) {
  sessions_[job] = {generation, token};
}

void SessionTable::Close(uint64_t job, uint32_t generation) {
  if (Find(job, generation) != nullptr) sessions_.erase(job);
}

const SessionToken* SessionTable::Find(uint64_t job, uint32_t generation) const {
  const auto found = sessions_.find(job);
  return found != sessions_.end() && found->second.generation == generation ? &found->second.token
                                                                            : nullptr;
}

const SessionToken* SessionTable::FindSince(uint64_t job, uint32_t generation) const {
  const auto found = sessions_.find(job);
  return found != sessions_.end() && found->second.generation >= generation ? &found->second.token
                                                                            : nullptr;
}

}  // namespace muster
