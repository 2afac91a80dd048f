#include "lib/concurrency/repeater.h"

#include <utility>

#include "lib/concurrency/steady_wait.h"

namespace muster {

Repeater::Repeater(absl::Duration interval, std::function<void()> work)
    : interval_(interval), work_(std::move(work)), thread_([this] { Run(); }) {}

Repeater::~Repeater() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void Repeater::Soon() {
  absl::MutexLock lock(&mu_);
  asked_ = true;
}

void Repeater::AwaitIdle() const {
  absl::MutexLock lock(&mu_);
  auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !asked_ && !working_; };
  mu_.Await(absl::Condition(&idle));
}

bool Repeater::stopping() const {
  absl::MutexLock lock(&mu_);
  return stopping_;
}

void Repeater::Run() {
  absl::MutexLock lock(&mu_);
  while (true) {
    AwaitFor(&mu_, absl::Condition(this, &Repeater::IsAsked), interval_);
    if (stopping_) return;
    asked_ = false;
    working_ = true;
    mu_.Unlock();
    work_();
    mu_.Lock();
    working_ = false;
  }
}

}  // namespace muster
