// Checks the form of the coordinator's addresses.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace muster {

// Checks `addresses`: "host:port", or several of them with commas between. Returns INVALID_ARGUMENT
// if one has no port from 1 to 65535: gRPC would silently dial a default port. Addresses that begin
// with one of gRPC's schemes ("dns:", "unix:", ...) are not checked.
absl::Status CheckAddresses(const std::string& addresses);

}  // namespace muster
