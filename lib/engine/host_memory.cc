#include "lib/engine/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "lib/concurrency/cpu_quota.h"
#include "lib/status/status.h"
#include "lib/text/byte_size.h"

namespace muster {
namespace {

// Returns the number after `name` in lines of "name number ...", or `absent` if there is none.
int64_t NumberOf(const std::string& path, const std::string& name, int64_t absent) {
  std::ifstream file(path);
  std::string word;
  int64_t number = 0;
  while (file >> word) {
    if (word == name) return file >> number ? number : absent;
  }
  return absent;
}

// Returns a number of /proc/meminfo in bytes. The fallback is the machine's memory.
int64_t MachineBytes(const std::string& root, const std::string& name) {
  const int64_t physical = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  const int64_t kilobytes = NumberOf(root + "/proc/meminfo", name, -1);
  return kilobytes < 0 ? physical : kilobytes * 1024;
}

// Returns the limit of this group, if it has one.
int64_t LimitOf(const CgroupFolder& group) {
  int64_t limit = 0;
  std::ifstream file(group.path + (group.version == 2 ? "/memory.max" : "/memory.limit_in_bytes"));
  return file >> limit ? limit : std::numeric_limits<int64_t>::max();
}

// Returns the bytes that this group has left. Page cache that can be dropped counts as left.
int64_t LeftIn(const CgroupFolder& group) {
  const bool second = group.version == 2;
  const std::string file = group.path + "/memory.";
  const int64_t limit = LimitOf(group);
  int64_t used = 0;
  if (limit == std::numeric_limits<int64_t>::max() ||
      !(std::ifstream(file + (second ? "current" : "usage_in_bytes")) >> used)) {
    return std::numeric_limits<int64_t>::max();  // "max", or no such group
  }
  // The active part of the page cache counts as droppable too, because it holds data files that are
  // mapped and read repeatedly.
  int64_t cache = 0;
  for (const char* part : {"inactive_file", "active_file"}) {
    cache += NumberOf(file + "stat", absl::StrCat(second ? "" : "total_", part), /*absent=*/0);
  }
  return std::max<int64_t>(0, limit - std::max<int64_t>(0, used - cache));
}

}  // namespace

int64_t AvailableHostBytes(const std::string& root) {
  int64_t bytes = MachineBytes(root, "MemAvailable:");
  for (const CgroupFolder& group : CgroupFolders("memory", root)) {
    bytes = std::min(bytes, LeftIn(group));
  }
  return bytes;
}

int64_t HostBytesLimit(const std::string& root) {
  int64_t bytes = MachineBytes(root, "MemTotal:");
  for (const CgroupFolder& group : CgroupFolders("memory", root)) {
    bytes = std::min(bytes, LimitOf(group));
  }
  return bytes;
}

absl::Status MemoryExhausted(absl::string_view what, int64_t bytes, absl::string_view kind,
                             int64_t available_bytes) {
  return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                        what, " need ", FormatBytes(bytes), " of ", kind, ", of which ",
                        FormatBytes(available_bytes),
                        " are left: use a smaller batch, more workers or a smaller model")),
                    "MEMORY_EXHAUSTED");
}

}  // namespace muster
