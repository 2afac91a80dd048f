#include "lib/concurrency/cpu_quota.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace muster {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// Version 2: "max 100000" or "150000 100000" (quota and period in microseconds).
double QuotaOfVersion2(const std::string& group) {
  std::ifstream file(group + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return kUnlimited;
  return std::strtod(quota.c_str(), nullptr) / period;
}

// Version 1: the two numbers in a file each; a quota of -1 is none.
double QuotaOfVersion1(const std::string& group) {
  double quota = 0, period = 0;
  std::ifstream(group + "/cpu.cfs_quota_us") >> quota;
  std::ifstream(group + "/cpu.cfs_period_us") >> period;
  return quota <= 0 || period <= 0 ? kUnlimited : quota / period;
}

// The smallest quota of `group` below `mount` and of all groups that it is in. A container may see
// a path of the host that is not there; the mount's own files are then those of its group.
template <typename Quota>
double SmallestQuota(const std::string& mount, absl::string_view group, const Quota& quota) {
  double smallest = quota(mount);
  std::string path = mount;
  for (absl::string_view part : absl::StrSplit(group, '/', absl::SkipEmpty())) {
    absl::StrAppend(&path, "/", part);
    smallest = std::min(smallest, quota(path));
  }
  return smallest;
}

int AffinityCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace

double CgroupCpus(const std::string& root) {
  double cpus = kUnlimited;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/group" or "0::/group"
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[0] == "0" && fields[1].empty()) {
      cpus = std::min(cpus, SmallestQuota(root + "/sys/fs/cgroup", fields[2], QuotaOfVersion2));
    } else if (absl::c_linear_search(absl::StrSplit(fields[1], ','), "cpu")) {
      cpus = std::min(cpus, SmallestQuota(root + "/sys/fs/cgroup/cpu", fields[2], QuotaOfVersion1));
    }
  }
  return cpus;
}

double UsableCpuTime() { return std::min<double>(AffinityCpus(), CgroupCpus()); }

int UsableCpus() { return std::max(1, static_cast<int>(std::ceil(UsableCpuTime()))); }

}  // namespace muster
