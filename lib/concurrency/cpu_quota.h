// How many processors this process may really use, and the cgroups that limit what it may use.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

struct CgroupFolder {
  std::string path;
  int version;  // of cgroup: 1 or 2
};

// The groups whose limits on `controller` ("cpu", "memory") bind this process, of cgroup v2 and v1:
// its own and all that it is in, up to the mount. There may be no such folder: a container may see
// a path of the host; the mount's own files are then those of its group. `root` is what stands
// before /proc and /sys, for tests.
std::vector<CgroupFolder> CgroupFolders(absl::string_view controller, const std::string& root = "");

// The processors' worth of time that the cgroup leaves this process, infinity where it sets no
// limit: the smallest quota on the way from its group to the root, of cgroup v2 (cpu.max) and v1
// (cpu.cfs_quota_us). `root` is what stands before /proc and /sys, for tests.
double CgroupCpus(const std::string& root = "");

// The smaller of the affinity mask and CgroupCpus(); a quota may leave half a processor. Reads the
// file system: call once.
double UsableCpuTime();

// The same, rounded up; at least 1.
int UsableCpus();

}  // namespace muster
