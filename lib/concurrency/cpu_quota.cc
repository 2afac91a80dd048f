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

// Reads the quota of cgroup version 2: "max 100000" or "150000 100000" (quota and period in
// microseconds).
double QuotaOfVersion2(const std::string& group) {
  std::ifstream file(group + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return kUnlimited;
  return std::strtod(quota.c_str(), nullptr) / period;
}

// Reads the quota of cgroup version 1, which has a file for each of the two numbers. A quota of -1
// means none.
double QuotaOfVersion1(const std::string& group) {
  double quota = 0, period = 0;
  std::ifstream(group + "/cpu.cfs_quota_us") >> quota;
  std::ifstream(group + "/cpu.cfs_period_us") >> period;
  return quota <= 0 || period <= 0 ? kUnlimited : quota / period;
}

int AffinityCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace

std::vector<CgroupFolder> CgroupFolders(absl::string_view controller, const std::string& root) {
  std::vector<CgroupFolder> folders;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/group" or "0::/group"
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const bool second = fields[0] == "0" && fields[1].empty();
    if (!second && !absl::c_linear_search(absl::StrSplit(fields[1], ','), controller)) continue;
    std::string path = root + "/sys/fs/cgroup";
    if (!second) absl::StrAppend(&path, "/", controller);
    folders.push_back({path, second ? 2 : 1});
    for (absl::string_view part : absl::StrSplit(fields[2], '/', absl::SkipEmpty())) {
      absl::StrAppend(&path, "/", part);
      folders.push_back({path, second ? 2 : 1});
    }
  }
  return folders;
}

double CgroupCpus(const std::string& root) {
  double cpus = kUnlimited;
  for (const CgroupFolder& group : CgroupFolders("cpu", root)) {
    cpus = std::min(cpus,
                    group.version == 2 ? QuotaOfVersion2(group.path) : QuotaOfVersion1(group.path));
  }
  return cpus;
}

double UsableCpuTime() { return std::min<double>(AffinityCpus(), CgroupCpus()); }

int UsableCpus() { return std::max(1, static_cast<int>(std::ceil(UsableCpuTime()))); }

}  // namespace muster
