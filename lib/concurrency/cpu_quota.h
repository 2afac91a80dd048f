// Finds how many processors this process may use, and the cgroups that limit it.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

struct CgroupFolder {
  std::string path;
  int version;  // cgroup version: 1 or 2
};

// Returns the groups with limits on `controller` ("cpu", "memory") that apply to this process, of
// cgroup v2 and v1: its own group and all parents, up to the mount. A folder may not exist: in a
// container the path may be the host's. Then the container's group has its files at the mount
// itself. `root` is prepended to /proc and /sys, for tests.
std::vector<CgroupFolder> CgroupFolders(absl::string_view controller, const std::string& root = "");

// Returns how many processors' worth of time the cgroup allows this process; infinity without a
// limit. That is the smallest quota from its group to the root, of cgroup v2 (cpu.max) and v1
// (cpu.cfs_quota_us). `root` is prepended to /proc and /sys, for tests.
double CgroupCpus(const std::string& root = "");

// Returns the smaller of the number of processors in the affinity mask and CgroupCpus(), which may
// be a fraction. Reads the file system: call it once.
double UsableCpuTime();

// Returns UsableCpuTime() rounded up; at least 1.
int UsableCpus();

}  // namespace muster
