#include "lib/concurrency/cpu_quota.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace muster {
namespace {

// cgroup v2: "max 100000" or "150000 100000" (quota and period in microseconds).
int CgroupCpus() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 1 << 20;
  return std::max(1, static_cast<int>(std::ceil(std::strtod(quota.c_str(), nullptr) / period)));
}

int AffinityCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace

int UsableCpus() { return std::min(AffinityCpus(), CgroupCpus()); }

}  // namespace muster
