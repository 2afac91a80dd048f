#include "lib/fleet/address.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace muster {
namespace {

constexpr char kUsualPort[] = "7070";
constexpr absl::string_view kSchemes[] = {
    "dns:", "unix:", "unix-abstract:", "vsock:", "ipv4:", "ipv6:", "xds:"};

bool HasScheme(absl::string_view address) {
  return std::ranges::any_of(
      kSchemes, [&](absl::string_view scheme) { return absl::StartsWith(address, scheme); });
}

// Whether `address` is an IPv6 address without brackets, such as "::1". It has no port.
bool IsBareIpv6(absl::string_view address) {
  return !absl::StartsWith(address, "[") && std::ranges::count(address, ':') > 1;
}

bool HasPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || IsBareIpv6(address)) return false;
  int port = 0;
  return absl::SimpleAtoi(address.substr(colon + 1), &port) && port > 0 &&
         port <= std::numeric_limits<uint16_t>::max();
}

// Returns `address` with the usual port, as a suggestion.
std::string WithPort(absl::string_view address) {
  if (IsBareIpv6(address)) return absl::StrCat("[", address, "]:", kUsualPort);
  const size_t colon = address.rfind(':');
  const bool is_in_host = absl::EndsWith(address, "]");
  return absl::StrCat(is_in_host ? address : address.substr(0, colon), ":", kUsualPort);
}

}  // namespace

absl::Status CheckAddresses(const std::string& addresses) {
  for (const absl::string_view address : absl::StrSplit(addresses, ',', absl::SkipEmpty())) {
    if (HasScheme(address) || HasPort(address)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the coordinator's address '", address, "' has no port from 1 to 65535; type ",
        WithPort(address), " if it listens on the usual port, else the port of its --listen"));
  }
  return absl::OkStatus();
}

}  // namespace muster
