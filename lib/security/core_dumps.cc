#include "lib/security/core_dumps.h"

#include <glog/logging.h>
#include <sys/resource.h>

#include <algorithm>

namespace muster {
namespace {

// core(5): a program that takes dumps (systemd-coredump, apport) is given them at a limit of 0 too,
// and not at 1, at which no file is written either.
constexpr rlim_t kNone = 1;

}  // namespace

void ForbidCoreDumps() {
  rlimit limit;
  PCHECK(getrlimit(RLIMIT_CORE, &limit) == 0);
  limit.rlim_cur = std::min(limit.rlim_max, kNone);
  PCHECK(setrlimit(RLIMIT_CORE, &limit) == 0);
}

}  // namespace muster
