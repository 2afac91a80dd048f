// How a transport's address travels: marked and checked, because what is inside is not fit to be
// read when it is something else.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// `mark` (4 letters), the CRC-32C of `address` (4 bytes, little-endian), `address`.
std::string SealAddress(absl::string_view mark, absl::string_view address);

// What SealAddress sealed, a part of `sealed`. INVALID_ARGUMENT for any other bytes, also for an
// empty address; `what` names it in the message ("UCX address").
absl::StatusOr<absl::string_view> OpenAddress(absl::string_view mark, absl::string_view sealed,
                                              absl::string_view what);

}  // namespace muster
