#include "services/coordinator/api/token_table.h"

#include <glog/logging.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/job/resource_name.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "services/coordinator/common/proto_time.h"

namespace muster {
namespace {

// All secrets begin with this: "muster.t-4f2a91c0.SECRET". So a secret that leaks into a log or a
// repository can be recognized, and the id in it tells which token to revoke.
constexpr absl::string_view kPrefix = "muster";

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  CHECK_EQ(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)), 1);
  return bytes;
}

std::string HashOf(absl::string_view secret) {
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(secret.data()), secret.size(),
         reinterpret_cast<unsigned char*>(hash.data()));
  return hash;
}

absl::Time OverAt(const v1::AccessToken& token) {
  const absl::Time ends = FromProto(token.expire_time());
  return token.has_revoke_time() ? std::min(ends, FromProto(token.revoke_time())) : ends;
}

absl::Status Invalid() {
  return WithReason(
      absl::UnauthenticatedError("the token is not of this cluster, was revoked or has expired: an "
                                 "admin makes a new one (muster token create)"),
      "TOKEN_INVALID");
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenTable>> TokenTable::Open(Store* store) {
  auto table = std::unique_ptr<TokenTable>(new TokenTable(store));
  ASSIGN_OR_RETURN(std::vector<Store::Token> tokens, store->Tokens());
  absl::MutexLock lock(&table->mu_);
  for (Store::Token& token : tokens) {
    const std::string id = token.record.id();
    table->tokens_[id] = std::move(token);
  }
  return table;
}

absl::StatusOr<v1::CreateTokenResponse> TokenTable::Create(const v1::CreateTokenRequest& request,
                                                           absl::Time now) {
  std::vector<FieldFault> faults;
  if (!IsValidName(request.holder())) {
    faults.push_back({"holder", absl::StrCat("'", request.holder(),
                                             "' is not a name: use small letters, "
                                             "digits and '-' between them")});
  }
  if (request.scope() < v1::TOKEN_READ || request.scope() > v1::TOKEN_ADMIN) {
    faults.push_back({"scope", "must be TOKEN_READ, TOKEN_SUBMIT or TOKEN_ADMIN"});
  }
  const absl::Duration lifetime = absl::Seconds(request.lifetime_seconds());
  if (lifetime < kLifetimeMin || lifetime > kLifetimeMax) {
    faults.push_back({"lifetime_seconds", "must be between a minute and 366 days"});
  }
  if (!faults.empty()) return FaultsToStatus(faults, "INVALID_REQUEST");

  const std::string id = absl::StrCat("t-", absl::BytesToHexString(RandomBytes(4)));
  v1::CreateTokenResponse response;
  response.set_secret(
      absl::StrCat(kPrefix, ".", id, ".", absl::WebSafeBase64Escape(RandomBytes(32))));
  Store::Token token{.hash = HashOf(response.secret())};
  token.record.set_id(id);
  token.record.set_holder(request.holder());
  token.record.set_scope(request.scope());
  *token.record.mutable_create_time() = ToProto(now);
  *token.record.mutable_expire_time() = ToProto(now + lifetime);
  RETURN_IF_ERROR(ForgetOld(now));
  {
    absl::MutexLock lock(&mu_);
    if (std::ssize(tokens_) >= kTokensMax) {
      return WithReason(
          absl::ResourceExhaustedError(absl::StrCat("there are ", kTokensMax,
                                                    " valid tokens, the limit: revoke unused ones "
                                                    "(muster token list)")),
          "TOO_MANY_TOKENS");
    }
  }
  RETURN_IF_ERROR(store_->PutToken(token));
  *response.mutable_token() = token.record;
  absl::MutexLock lock(&mu_);
  tokens_[id] = std::move(token);
  return response;
}

absl::Status TokenTable::ForgetOld(absl::Time now) {
  std::vector<std::string> old;
  {
    absl::MutexLock lock(&mu_);
    absl::Time first_over = now;
    const std::string* first = nullptr;  // of the tokens that ended, the one that ended first
    for (const auto& [id, token] : tokens_) {
      const absl::Time over = OverAt(token.record);
      if (FromProto(token.record.expire_time()) + kShownFor < now) {
        old.push_back(id);
      } else if (over <= first_over) {
        first_over = over;
        first = &id;
      }
    }
    if (first != nullptr && std::ssize(tokens_) - std::ssize(old) >= kTokensMax) {
      old.push_back(*first);
    }
  }
  for (const std::string& id : old) {
    RETURN_IF_ERROR(store_->DeleteToken(id));
    absl::MutexLock lock(&mu_);
    tokens_.erase(id);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::AccessToken> TokenTable::Revoke(const std::string& id, absl::Time now) {
  Store::Token token;
  {
    absl::MutexLock lock(&mu_);
    const auto found = tokens_.find(id);
    if (found == tokens_.end()) {
      return WithReason(absl::NotFoundError(absl::StrCat("no token '", id, "'")),
                        "TOKEN_NOT_FOUND");
    }
    // The token is refused from now on, even if the store fails. A repeated call stores it again.
    if (!found->second.record.has_revoke_time()) {
      *found->second.record.mutable_revoke_time() = ToProto(now);
    }
    token = found->second;
  }
  RETURN_IF_ERROR(store_->PutToken(token));
  return token.record;
}

std::vector<v1::AccessToken> TokenTable::List() const {
  std::vector<v1::AccessToken> tokens;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, token] : tokens_) tokens.push_back(token.record);
  }
  std::stable_sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) {
    return FromProto(a.create_time()) > FromProto(b.create_time());
  });
  return tokens;
}

absl::StatusOr<v1::AccessToken> TokenTable::Find(absl::string_view secret, absl::Time now) const {
  const std::vector<absl::string_view> parts = absl::StrSplit(secret, '.');
  if (parts.size() != 3 || parts[0] != kPrefix) return Invalid();
  const std::string hash = HashOf(secret);
  absl::MutexLock lock(&mu_);
  const auto found = tokens_.find(std::string(parts[1]));
  if (found == tokens_.end()) return Invalid();
  const Store::Token& token = found->second;
  if (token.hash.size() != hash.size() ||
      CRYPTO_memcmp(token.hash.data(), hash.data(), hash.size()) != 0 ||
      token.record.has_revoke_time() || FromProto(token.record.expire_time()) <= now) {
    return Invalid();
  }
  return token.record;
}

}  // namespace muster
