// Writes tar archives in the ustar format.
//   Source: POSIX.1-2017, "pax", section "ustar Interchange Format"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace muster {

// Returns the header of a member. Owner and time are zero, so that equal input gives equal bytes.
// `kind` is '0' for a regular file. Requires: `name` has at most 100 bytes, and `bytes` < 2^33.
std::string TarHeader(absl::string_view name, int64_t bytes, char kind = '0');

// Returns the zeros that follow the `bytes` of a member up to the next block.
std::string TarPadding(int64_t bytes);

// Returns the mark of the archive's end.
std::string TarEnd();

// Writes the checksum into the header at `at`. Requires: the archive has the whole header.
void SetTarChecksum(std::string& archive, size_t at = 0);

}  // namespace muster
