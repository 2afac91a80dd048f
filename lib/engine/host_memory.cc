#include "lib/engine/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// The number after `name` in lines of "name number ..."; `absent` where there is none.
int64_t NumberOf(const std::string& path, const std::string& name, int64_t absent) {
  std::ifstream file(path);
  std::string word;
  int64_t number = 0;
  while (file >> word) {
    if (word == name) return file >> number ? number : absent;
  }
  return absent;
}

int64_t MachineBytes(const std::string& root) {
  const int64_t physical = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  const int64_t kilobytes = NumberOf(root + "/proc/meminfo", "MemAvailable:", -1);
  return kilobytes < 0 ? physical : kilobytes * 1024;
}

int64_t CgroupBytes(const std::string& root) {
  const std::string cgroup = root + "/sys/fs/cgroup/memory.";
  int64_t limit = 0, used = 0;
  if (!(std::ifstream(cgroup + "max") >> limit) || !(std::ifstream(cgroup + "current") >> used)) {
    return std::numeric_limits<int64_t>::max();  // "max", or no cgroup
  }
  return std::max<int64_t>(0, limit - used + NumberOf(cgroup + "stat", "inactive_file", 0));
}

}  // namespace

int64_t AvailableHostBytes(const std::string& root) {
  return std::min(MachineBytes(root), CgroupBytes(root));
}

absl::Status MemoryExhausted(absl::string_view what, int64_t bytes, absl::string_view kind,
                             int64_t available_bytes) {
  return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                        what, " need ", bytes, " bytes of ", kind, ", of which ", available_bytes,
                        " are left: use a smaller batch, more workers or a smaller model")),
                    "MEMORY_EXHAUSTED");
}

}  // namespace muster
