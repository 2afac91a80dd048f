// The envelope of a transport's address: a mark and a checksum. They keep damaged or foreign bytes
// from UCX, which does not check an address.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// Returns `mark` (4 letters), the CRC-32C of `address` (4 bytes, little-endian), and `address`.
std::string SealAddress(absl::string_view mark, absl::string_view address);

// Returns the address inside `sealed`, as a view of it. Returns INVALID_ARGUMENT for any bytes that
// SealAddress did not make, and for an empty address. `what` names the address in the message, for
// example "UCX address".
absl::StatusOr<absl::string_view> OpenAddress(absl::string_view mark, absl::string_view sealed,
                                              absl::string_view what);

}  // namespace muster
