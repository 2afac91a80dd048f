// The access tokens of users and their programs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/muster/v1/access.pb.h"
#include "services/coordinator/store/store.h"

namespace muster {

// A secret has 256 random bits. The store only has its SHA-256, so a reader of the store cannot use
// it. Calls that change a token block for the disk; Find() does not. Thread-safe.
class TokenTable {
 public:
  static constexpr int kTokensMax = 10'000;
  // Expired tokens are listed for this long, then forgotten when another token is created. If there
  // are kTokensMax, a new token replaces the one that expired or was revoked first.
  static constexpr absl::Duration kShownFor = absl::Hours(24 * 30);
  static constexpr absl::Duration kLifetimeMin = absl::Minutes(1);
  static constexpr absl::Duration kLifetimeMax = absl::Hours(24 * 366);

  // Reads the tokens of `store`, which must outlive the table.
  static absl::StatusOr<std::unique_ptr<TokenTable>> Open(Store* store);

  // Returns INVALID_ARGUMENT (reason "INVALID_REQUEST") for a bad holder, scope or lifetime,
  // RESOURCE_EXHAUSTED (reason "TOO_MANY_TOKENS") if kTokensMax are valid, or an error of the
  // store.
  absl::StatusOr<v1::CreateTokenResponse> Create(const v1::CreateTokenRequest& request,
                                                 absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns NOT_FOUND (reason "TOKEN_NOT_FOUND") if there is no such token.
  absl::StatusOr<v1::AccessToken> Revoke(const std::string& id, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<v1::AccessToken> List() const ABSL_LOCKS_EXCLUDED(mu_);  // newest first

  // Returns the token with this secret, or UNAUTHENTICATED (reason "TOKEN_INVALID") if it does not
  // exist, was revoked or has expired. The message does not tell which.
  absl::StatusOr<v1::AccessToken> Find(absl::string_view secret, absl::Time now) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit TokenTable(Store* store) : store_(store) {}

  absl::Status ForgetOld(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  Store* const store_;
  mutable absl::Mutex mu_;
  absl::btree_map<std::string, Store::Token> tokens_ ABSL_GUARDED_BY(mu_);  // by id
};

}  // namespace muster
