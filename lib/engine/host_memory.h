// How much memory the machine can still give.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace muster {

// The smallest of what the kernel calls available and what each cgroup that this process is in has
// left, page cache that can be dropped counted as left; in bytes. `root`: where /proc and /sys lie,
// for tests. Reads the file system.
int64_t AvailableHostBytes(const std::string& root = "");

// RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED": "`what` need `bytes` bytes of `kind`, ...".
absl::Status MemoryExhausted(absl::string_view what, int64_t bytes, absl::string_view kind,
                             int64_t available_bytes);

}  // namespace muster
