// The caller of a method, as the listener knows it and as services see it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/security/identity.h"

namespace muster {

struct Caller {
  std::optional<Identity> certificate;  // of the connection; nullopt: none
  std::string address;                  // "10.1.2.3:40812"; "" if it is unknown
  std::string token;                    // of the call: "t-4f2a91c0 (ann)"; "": none

  // Returns "worker/w-1", "token t-4f2a91c0 (ann)", or "anonymous" without either.
  std::string Name() const;
  // Returns the name and the address: "worker/w-1 from 10.1.2.3:40812".
  std::string ToString() const;
};

// Signs and reads the header field in which the listener writes the caller of a call. The key never
// leaves the process, and the address is part of the signed text. So a client that learned its own
// stamp could not make another. Thread-safe.
class CallerStamp {
 public:
  static constexpr char kField[] = "x-muster-caller";

  CallerStamp();  // Creates a new key.

  // `client` is the identity in its certificate; nullopt if there is none.
  std::string Sign(const std::optional<Identity>& client, absl::string_view address) const;
  // Returns INVALID_ARGUMENT if the stamp is not signed with this key.
  absl::StatusOr<Caller> Read(absl::string_view stamp) const;

 private:
  std::string SignatureOf(absl::string_view text) const;

  std::string key_;
};

// Ensures that a member speaks only as itself. Returns PERMISSION_DENIED (reason "NOT_YOUR_NAME")
// unless the certificate has this role, and this name or no name. Returns OK without a certificate:
// then the caller has proved a permission that only members have, or access is open.
absl::Status CheckSpeaksAs(const std::optional<Identity>& certificate, Role role,
                           const std::string& member);

}  // namespace muster
