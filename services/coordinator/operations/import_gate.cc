#include "services/coordinator/operations/import_gate.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/concurrency/steady_wait.h"

namespace muster {
namespace {

constexpr absl::Duration kAskInterval = absl::Milliseconds(200);

}  // namespace

absl::StatusOr<ImportGate::Slot> ImportGate::Enter(const std::function<bool()>& caller_gone,
                                                   absl::Duration patience) {
  auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return free_ > 0; };
  const absl::Duration end = SteadyNow() + patience;
  while (!caller_gone()) {
    absl::MutexLock lock(&mu_);
    const absl::Duration left = std::max(end - SteadyNow(), absl::ZeroDuration());
    if (AwaitFor(&mu_, absl::Condition(&free), std::min(left, kAskInterval))) {
      --free_;
      return Slot(nullptr, [this](void*) { Leave(); });
    }
    if (SteadyNow() >= end) {
      return absl::DeadlineExceededError(absl::StrCat(
          "others are being read, and none finished within ", absl::FormatDuration(patience)));
    }
  }
  return absl::CancelledError("the caller is gone; other models or data sets were being read");
}

void ImportGate::Leave() {
  absl::MutexLock lock(&mu_);
  ++free_;
}

}  // namespace muster
