#include "lib/concurrency/numa_node.h"

#include <sched.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace muster {

absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view list) {
  std::vector<int> cpus;
  for (const absl::string_view part :
       absl::StrSplit(absl::StripAsciiWhitespace(list), ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first || last >= CPU_SETSIZE) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", list, "' is no list of processors: expected \"0-3,8\""));
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

absl::StatusOr<std::vector<int>> CpusNextTo(absl::string_view bus_id, const std::string& devices) {
  const std::string path =
      absl::StrCat(devices, "/", absl::AsciiStrToLower(bus_id), "/local_cpulist");
  std::ifstream file(path);
  std::string list;
  if (!std::getline(file, list)) {
    return absl::NotFoundError(absl::StrCat(path, " cannot be read: ", strerror(errno)));
  }
  absl::StatusOr<std::vector<int>> cpus = ParseCpuList(list);
  if (cpus.ok() && cpus->empty()) return absl::NotFoundError(absl::StrCat(path, " is empty"));
  return cpus;
}

absl::Status BindThreadTo(const std::vector<int>& cpus) {
  cpu_set_t allowed, wanted;
  CPU_ZERO(&wanted);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return absl::InternalError(absl::StrCat("sched_getaffinity: ", strerror(errno)));
  }
  for (const int cpu : cpus) {
    if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &wanted);
  }
  if (CPU_COUNT(&wanted) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("this thread may run on none of the processors ", absl::StrJoin(cpus, ",")));
  }
  if (sched_setaffinity(0, sizeof(wanted), &wanted) != 0) {
    return absl::InternalError(absl::StrCat("sched_setaffinity: ", strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace muster
