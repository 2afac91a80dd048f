#include "lib/collective/barrier.h"

#include <utility>

#include "glog/logging.h"

namespace muster {

absl::Status Barrier::Await() {
  absl::MutexLock lock(&mu_);
  if (!aborted_.ok()) return aborted_;
  if (++arrived_ == participants_) {
    arrived_ = 0;
    ++phase_;
    return absl::OkStatus();
  }
  auto passed = [this, phase = phase_]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return phase_ != phase || !aborted_.ok();
  };
  const int64_t phase = phase_;
  mu_.Await(absl::Condition(&passed));
  return phase_ != phase ? absl::OkStatus() : aborted_;
}

void Barrier::Abort(absl::Status why) {
  CHECK(!why.ok());
  absl::MutexLock lock(&mu_);
  if (aborted_.ok()) aborted_ = std::move(why);
}

}  // namespace muster
