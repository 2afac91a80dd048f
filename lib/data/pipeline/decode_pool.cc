#include "lib/data/pipeline/decode_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include "glog/logging.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/log/log_scope.h"

namespace muster {

DecodePool::DecodePool(int threads, int nice) {
  CHECK_GE(threads, 1);
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this, nice, fields = LogScope::Current()] {
      const LogScope scope(fields);
      Run(nice);
    });
  }
}

DecodePool::~DecodePool() {
  absl::MutexLock lock(&mu_);
  CHECK(work_.empty()) << "a queue outlives its pool";
  closed_ = true;
}

DecodePool::Queue::~Queue() {
  absl::MutexLock lock(&pool_.mu_);
  std::erase_if(pool_.work_, [this](const Work& work) { return work.queue == this; });
  auto ended = [this] { return running_ == 0; };
  pool_.mu_.Await(absl::Condition(&ended));
}

void DecodePool::Queue::Add(int64_t parts, std::function<void(int64_t)> run,
                            std::function<void()> ended) {
  if (parts == 0) return;
  auto calls = std::make_shared<const Calls>(Calls{std::move(run), std::move(ended)});
  absl::MutexLock lock(&pool_.mu_);
  pool_.work_.push_back({.queue = this, .parts = parts, .calls = std::move(calls)});
}

DecodePool::Usage DecodePool::usage() const {
  absl::MutexLock lock(&mu_);
  return {.times = times_, .idle = idle_ + waiting_ * SteadyNow() - waits_began_};
}

void DecodePool::Run(int nice) {
  // Linux has a nice value for each thread. A failure only costs speed.
  const auto thread = static_cast<id_t>(gettid());
  if (nice != 0) setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + nice);
  while (std::optional<Work> work = Take()) {
    StageTimes times;
    SetStageTimes(&times);
    work->calls->run(work->next);
    SetStageTimes(nullptr);
    AddTimes(times);
    if (work->calls->ended) work->calls->ended();
    work->calls.reset();  // before the queue's owner may destroy what the calls refer to
    Ended(work->queue);
  }
}

std::optional<DecodePool::Work> DecodePool::Take() {
  absl::MutexLock lock(&mu_);
  auto may_go_on = [this]()
                       ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return closed_ || !work_.empty(); };
  if (!may_go_on()) {
    const absl::Duration began = SteadyNow();
    ++waiting_;
    waits_began_ += began;
    mu_.Await(absl::Condition(&may_go_on));
    --waiting_;
    waits_began_ -= began;
    idle_ += SteadyNow() - began;
  }
  if (closed_) return std::nullopt;
  Work& first = work_.front();
  Work taken = first;
  ++taken.queue->running_;
  if (++first.next == first.parts) work_.pop_front();
  return taken;
}

void DecodePool::AddTimes(const StageTimes& times) {
  absl::MutexLock lock(&mu_);
  times_ += times;
}

void DecodePool::Ended(Queue* queue) {
  absl::MutexLock lock(&mu_);
  --queue->running_;
}

}  // namespace muster
