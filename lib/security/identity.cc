#include "lib/security/identity.h"

#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "lib/job/resource_name.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr absl::string_view kTrustDomain = "spiffe://muster/";
constexpr std::array<std::pair<Role, absl::string_view>, 5> kRoles = {{
    {Role::kCoordinator, "coordinator"},
    {Role::kPs, "ps"},
    {Role::kWorker, "worker"},
    {Role::kAdmin, "admin"},
    {Role::kSubmitter, "submitter"},
}};

}  // namespace

absl::string_view RoleName(Role role) { return kRoles[static_cast<size_t>(role)].second; }

absl::StatusOr<Role> ParseRole(absl::string_view name) {
  for (const auto& [role, known] : kRoles) {
    if (known == name) return role;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is no role: coordinator, ps, worker, admin or submitter"));
}

std::string ToString(const Identity& identity) {
  return absl::StrCat(RoleName(identity.role), identity.name.empty() ? "" : "/", identity.name);
}

std::string UriOf(const Identity& identity) {
  return absl::StrCat(kTrustDomain, ToString(identity));
}

absl::StatusOr<Identity> ParseIdentityUri(absl::string_view uri) {
  absl::string_view rest = uri;
  if (!absl::ConsumePrefix(&rest, kTrustDomain)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", uri, "' does not begin with ", kTrustDomain));
  }
  const size_t slash = rest.find('/');
  ASSIGN_OR_RETURN(const Role role, ParseRole(rest.substr(0, slash)));
  if (slash == absl::string_view::npos) return Identity{.role = role, .name = ""};
  const absl::string_view name = rest.substr(slash + 1);
  if (!IsValidName(name)) {
    return absl::InvalidArgumentError(absl::StrCat("'", uri, "': '", name, "' is no valid name"));
  }
  return Identity{.role = role, .name = std::string(name)};
}

}  // namespace muster
