// The form of a coordinator's address.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace muster {

// INVALID_ARGUMENT if one of `addresses`, "host:port" with commas between them,
// has no port from 1 to 65535. gRPC dials another port then and says nothing of it. Addresses that
// begin with one of gRPC's schemes ("dns:", "unix:", ...) are not looked at.
absl::Status CheckAddresses(const std::string& addresses);

}  // namespace muster
