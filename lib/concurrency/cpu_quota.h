// How many processors this process may really use.
#pragma once

#include <string>

namespace muster {

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
