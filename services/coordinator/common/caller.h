// Who makes a call, as the front door knows it and as services see it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/security/identity.h"

namespace muster {

struct Caller {
  std::optional<Identity> certificate;  // of the connection; nullopt: it has shown none
  std::string address;                  // "10.1.2.3:40812"; "" in a process of its own
  std::string token;                    // "t-4f2a91c0 (ann)", of the call; "": none

  // "worker/w-1", "token t-4f2a91c0 (ann)"; "anonymous" if it has shown neither.
  std::string Name() const;
  // The same and the address: "worker/w-1 from 10.1.2.3:40812".
  std::string ToString() const;
};

// What the door writes on calls, in this field of their headers, and what is read off them. It is
// signed with a key that never leaves the process: a client that learned what is written on its own
// calls could write nothing else by that. Thread-safe.
class CallerStamp {
 public:
  static constexpr char kField[] = "x-muster-caller";

  CallerStamp();  // with a key of its own

  // `client` by its certificate, or nobody known.
  std::string Sign(const std::optional<Identity>& client, absl::string_view address) const;
  // INVALID_ARGUMENT: not signed with this key.
  absl::StatusOr<Caller> Read(absl::string_view stamp) const;

 private:
  std::string SignatureOf(absl::string_view text) const;

  std::string key_;
};

// A member can only speak as itself: PERMISSION_DENIED (reason "NOT_YOUR_NAME") unless the
// certificate is of this role, and of this name or of none. OK without a certificate: whoever calls
// was asked for a permission that only members have, or nobody is asked.
absl::Status CheckSpeaksAs(const std::optional<Identity>& certificate, Role role,
                           const std::string& member);

}  // namespace muster
