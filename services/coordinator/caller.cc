#include "services/coordinator/caller.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr absl::string_view kNobody = "-";
constexpr absl::string_view kTrustDomain = "spiffe://muster/";

}  // namespace

std::string Caller::Stamp(absl::string_view identity, absl::string_view address) {
  return absl::StrCat(identity.empty() ? kNobody : identity, " ", address);
}

absl::StatusOr<Caller> Caller::Parse(absl::string_view stamp) {
  const size_t space = stamp.find(' ');
  if (space == absl::string_view::npos) return absl::InvalidArgumentError("no stamp");
  Caller caller{.address = std::string(stamp.substr(space + 1))};
  if (const absl::string_view identity = stamp.substr(0, space); identity != kNobody) {
    ASSIGN_OR_RETURN(caller.certificate, ParseIdentityUri(absl::StrCat(kTrustDomain, identity)));
  }
  return caller;
}

std::string Caller::ToString() const {
  const std::string who = !token.empty()            ? absl::StrCat("token ", token)
                          : certificate.has_value() ? muster::ToString(*certificate)
                                                    : "somebody";
  return address.empty() ? who : absl::StrCat(who, " from ", address);
}

}  // namespace muster
