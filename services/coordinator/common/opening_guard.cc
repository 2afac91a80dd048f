#include "services/coordinator/common/opening_guard.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "lib/concurrency/steady_wait.h"

namespace muster {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(50);
// Longer gaps between two looks count as this much, because this process itself may have been
// stopped.
constexpr absl::Duration kLookMax = absl::Milliseconds(200);

}  // namespace

OpeningGuard::OpeningGuard(const StopSignal& stop, absl::Duration silence_max)
    : stop_(stop), silence_max_(silence_max), thread_([this] { Watch(); }) {}

OpeningGuard::~OpeningGuard() {
  opened_ = true;
  thread_.join();
}

void OpeningGuard::Watch() {
  int64_t seen = 0;
  absl::Duration silence, last = SteadyNow();
  while (!opened_) {
    if (stop_.Await(kLook) != 0) {
      LOG(INFO) << "stopped before it served anything";
      std::_Exit(kExitOk);
    }
    const absl::Duration now = SteadyNow();
    silence += std::min(now - std::exchange(last, now), kLookMax);
    if (const int64_t advances = advances_; advances != seen) {
      seen = advances;
      silence = absl::ZeroDuration();
    }
    if (silence < silence_max_) continue;
    LOG(ERROR) << "opening the state made no progress for " << silence_max_
               << ": does the file system of --state_dir answer (ls, a network file system's "
                  "server)? This coordinator ends, so that another may lead";
    std::_Exit(kExitUnavailable);
  }
}

}  // namespace muster
