#include "lib/concurrency/short_slices.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace muster {
namespace {

// The kernel's shortest slice; the default is 3 ms or more.
constexpr uint64_t kSliceNanoseconds = 100'000;

// Declared here because linux/sched/types.h conflicts with glibc's sched.h.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes);
  uint32_t policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0;
  uint64_t deadline = 0;
  uint64_t period = 0;
};

}  // namespace

void AskForShortSlices() {
  SchedulingAttributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  // Keep a policy that was chosen explicitly for the process.
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime = kSliceNanoseconds;
  (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace muster
