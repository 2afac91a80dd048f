// The tokens of people and their programs.
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

// A secret is 256 random bits; the store has their SHA-256 alone, so who reads it cannot call with
// it. Thread-safe; what changes a token waits for the disk, Find() does not.
class TokenTable {
 public:
  static constexpr int kTokensMax = 10'000;
  // Tokens that have ended are listed for so long, then forgotten when another is made. While there
  // are kTokensMax, another takes the place of the one that ended or was revoked first.
  static constexpr absl::Duration kShownFor = absl::Hours(24 * 30);
  static constexpr absl::Duration kLifetimeMin = absl::Minutes(1);
  static constexpr absl::Duration kLifetimeMax = absl::Hours(24 * 366);

  // Reads the tokens of `store`, which outlives the table.
  static absl::StatusOr<std::unique_ptr<TokenTable>> Open(Store* store);

  // INVALID_ARGUMENT (reason "INVALID_REQUEST"): holder, scope or lifetime; RESOURCE_EXHAUSTED
  // (reason "TOO_MANY_TOKENS"): as many are valid. The store's errors.
  absl::StatusOr<v1::CreateTokenResponse> Create(const v1::CreateTokenRequest& request,
                                                 absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // NOT_FOUND (reason "TOKEN_NOT_FOUND").
  absl::StatusOr<v1::AccessToken> Revoke(const std::string& id, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<v1::AccessToken> List() const ABSL_LOCKS_EXCLUDED(mu_);  // newest first

  // The token with this secret. UNAUTHENTICATED (reason "TOKEN_INVALID"): there is none, or it was
  // revoked, or has ended; the message does not say more than its holder may know.
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
