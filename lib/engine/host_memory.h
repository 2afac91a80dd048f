// How much memory the machine can still give.
#pragma once

#include <cstdint>
#include <string>

namespace muster {

// The smaller of what the kernel calls available and what the cgroup (v2) has left, page cache that
// can be dropped counted as left; in bytes. `root`: where /proc and /sys lie, for tests. Reads the
// file system.
int64_t AvailableHostBytes(const std::string& root = "");

}  // namespace muster
