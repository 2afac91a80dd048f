#include "lib/transport/tcp/connect_attempts.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

// The weight orders errors by how much they tell. A refusal outranks a wrong version, and both
// outrank an address that cannot be reached.
int Weight(const absl::Status& status) {
  return absl::IsPermissionDenied(status) ? 2 : absl::IsFailedPrecondition(status) ? 1 : 0;
}

}  // namespace

ConnectAttempts::Next ConnectAttempts::Take() {
  if (addresses_.empty()) {
    if (endpoints_.empty()) return fault_;
    Endpoint endpoint = std::move(endpoints_.front());
    endpoints_.pop_front();
    const auto numeric = SocketAddress::Numeric(endpoint.host, endpoint.port);
    if (!numeric.has_value()) return endpoint;
    return *numeric;
  }
  const SocketAddress address = addresses_.front();
  addresses_.pop_front();
  return address;
}

void ConnectAttempts::Resolved(const std::vector<SocketAddress>& addresses) {
  addresses_.assign(addresses.begin(), addresses.end());
}

void ConnectAttempts::Failed(const absl::Status& why) {
  if (fault_.ok() || Weight(why) > Weight(fault_)) {
    fault_ = why;
  } else if (Weight(why) == Weight(fault_)) {
    fault_ = absl::Status(fault_.code(), absl::StrCat(fault_.message(), "; ", why.message()));
  }
}

bool ConnectAttempts::Repeat(const SocketAddress& address) {
  if (repeats_ >= kRepeatsMax) return false;
  ++repeats_;
  addresses_.push_front(address);
  return true;
}

void ConnectAttempts::Stop() {
  endpoints_.clear();
  addresses_.clear();
}

}  // namespace muster
