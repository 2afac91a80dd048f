#include "lib/security/core_dumps.h"

#include <glog/logging.h>
#include <sys/resource.h>

#include <algorithm>

namespace muster {
namespace {

// The limit for the size of dumps. It is 1, not 0: a program that collects dumps (systemd-coredump,
// apport) gets them even at a limit of 0, but not at 1: core(5). At 1 no file is written either.
constexpr rlim_t kNone = 1;

}  // namespace

void ForbidCoreDumps() {
  rlimit limit;
  PCHECK(getrlimit(RLIMIT_CORE, &limit) == 0);
  limit.rlim_cur = std::min(limit.rlim_max, kNone);
  PCHECK(setrlimit(RLIMIT_CORE, &limit) == 0);
}

}  // namespace muster
