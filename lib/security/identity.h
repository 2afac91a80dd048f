// The identity of a process or person, as its certificate states it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// The role that a certificate of the site's authority gives its holder.
enum class Role : uint8_t {
  kCoordinator,
  kPs,
  kWorker,
  kAdmin,     // a person with full access
  kSubmitter  // a person who may view everything and submit jobs
};

// The identity of a certificate's holder. Stored in certificates as a SPIFFE ID (https://spiffe.io,
// X.509-SVID): the only URI among the subject's alternative names, "spiffe://muster/ROLE" or
// "spiffe://muster/ROLE/NAME".
struct Identity {
  Role role;
  // The name of a member or a person. "" for a member allows any name in its role, so that one
  // certificate can serve all pods of a set.
  std::string name;

  friend bool operator==(const Identity&, const Identity&) = default;
};

// "worker", "admin", ...
absl::string_view RoleName(Role role);
absl::StatusOr<Role> ParseRole(absl::string_view name);

// "worker/worker-3", "ps".
std::string ToString(const Identity& identity);

std::string UriOf(const Identity& identity);
// Returns INVALID_ARGUMENT for another kind of URI, an unknown role, or an invalid name.
absl::StatusOr<Identity> ParseIdentityUri(absl::string_view uri);

}  // namespace muster
