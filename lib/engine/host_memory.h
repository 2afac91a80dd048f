// The memory that the machine has left.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace muster {

// Returns the memory that this process can still get, in bytes. It is the minimum over the kernel's
// MemAvailable and the memory left in each cgroup of this process. Page cache that can be dropped
// counts as left. `root` is the folder that contains /proc and /sys, for tests. Reads the file
// system.
int64_t AvailableHostBytes(const std::string& root = "");

// Returns the memory that this process may have in total, in bytes: the smallest limit of its
// cgroups, or the machine's memory. `root` is as above. Reads the file system.
int64_t HostBytesLimit(const std::string& root = "");

// Returns RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED": "`what` need 3.0 GiB of `kind`, ...".
absl::Status MemoryExhausted(absl::string_view what, int64_t bytes, absl::string_view kind,
                             int64_t available_bytes);

}  // namespace muster
