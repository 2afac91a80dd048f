#include "services/coordinator/import_gate.h"

#include "absl/time/time.h"
#include "lib/concurrency/steady_wait.h"

namespace muster {
namespace {

constexpr absl::Duration kAskInterval = absl::Milliseconds(200);

}  // namespace

ImportGate::Slot::~Slot() {
  absl::MutexLock lock(&gate_->mu_);
  ++gate_->free_;
}

absl::StatusOr<std::unique_ptr<ImportGate::Slot>> ImportGate::Enter(
    const std::function<bool()>& caller_gone) {
  auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return free_ > 0; };
  while (!caller_gone()) {
    absl::MutexLock lock(&mu_);
    if (!AwaitFor(&mu_, absl::Condition(&free), kAskInterval)) continue;
    --free_;
    return std::make_unique<Slot>(this);
  }
  return absl::CancelledError("the caller is gone; other models and data sets were being read");
}

}  // namespace muster
