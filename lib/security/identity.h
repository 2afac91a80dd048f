// Who somebody is, as a certificate says it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// What a certificate of the site's authority lets its holder be.
enum class Role : uint8_t {
  kCoordinator,
  kPs,
  kWorker,
  kAdmin,     // a person who may do everything
  kSubmitter  // a person who may look, and have jobs
};

// In certificates a SPIFFE ID (https://spiffe.io, X.509-SVID): the one URI among the subject's
// alternative names, "spiffe://muster/ROLE" or "spiffe://muster/ROLE/NAME".
struct Identity {
  Role role;
  // Of a member or a person. "" for a member: whoever of the role, by any name; so it is where one
  // certificate serves all pods of a set.
  std::string name;

  friend bool operator==(const Identity&, const Identity&) = default;
};

// "worker", "admin", ...
absl::string_view RoleName(Role role);
absl::StatusOr<Role> ParseRole(absl::string_view name);

// "worker/worker-3", "ps".
std::string ToString(const Identity& identity);

std::string UriOf(const Identity& identity);
// INVALID_ARGUMENT: it is another kind of URI, or none of these roles or names.
absl::StatusOr<Identity> ParseIdentityUri(absl::string_view uri);

}  // namespace muster
