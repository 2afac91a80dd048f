#include "services/coordinator/membership/watch_hub.h"

namespace muster {

std::shared_ptr<JobWatch> WatchHub::Add(uint64_t number, std::string name, uint64_t revision,
                                        std::shared_ptr<StreamWaker> waker) {
  std::shared_ptr<JobWatch> watch(new JobWatch(number, std::move(name), std::move(waker)));
  watch->revision = revision;
  absl::MutexLock lock(&mu_);
  if (++added_ > kForgottenMax) ForgetGone();
  auto& watches = watches_[number];
  std::erase_if(watches, [](const auto& other) { return other.expired(); });
  watches.push_back(watch);
  return watch;
}

// Drops watches whose streams are gone. The watches of a job that has ended are never woken, so
// nothing else notices that they are gone.
void WatchHub::ForgetGone() {
  added_ = 0;
  absl::erase_if(watches_, [](auto& job) {
    std::erase_if(job.second, [](const auto& watch) { return watch.expired(); });
    return job.second.empty();
  });
}

int64_t WatchHub::jobs_held() const {
  absl::MutexLock lock(&mu_);
  return std::ssize(watches_);
}

void WatchHub::Wake(absl::Span<const uint64_t> numbers) {
  std::vector<std::shared_ptr<StreamWaker>> wakers;
  {
    absl::MutexLock lock(&mu_);
    for (const uint64_t number : numbers) {
      auto it = watches_.find(number);
      if (it == watches_.end()) continue;
      std::erase_if(it->second, [](const auto& watch) { return watch.expired(); });
      for (const auto& weak : it->second) {
        if (const auto watch = weak.lock()) {
          watch->due_ = true;
          wakers.push_back(watch->waker_);
        }
      }
      if (it->second.empty()) watches_.erase(it);
    }
    std::erase_if(watches_of_all_, [](const auto& watch) { return watch.expired(); });
    for (const auto& weak : watches_of_all_) {
      const auto watch = weak.lock();
      if (watch == nullptr || numbers.empty()) continue;
      watch->changed_.insert(numbers.begin(), numbers.end());
      wakers.push_back(watch->waker_);
    }
  }
  for (const auto& waker : wakers) waker->Wake();
}

std::shared_ptr<JobsWatch> WatchHub::AddForAll(std::shared_ptr<StreamWaker> waker) {
  std::shared_ptr<JobsWatch> watch(new JobsWatch(std::move(waker)));
  absl::MutexLock lock(&mu_);
  std::erase_if(watches_of_all_, [](const auto& other) { return other.expired(); });
  watches_of_all_.push_back(watch);
  return watch;
}

std::vector<uint64_t> WatchHub::TakeChanged(JobsWatch& watch, int max) {
  absl::MutexLock lock(&mu_);
  std::vector<uint64_t> numbers;
  while (!watch.changed_.empty() && std::ssize(numbers) < max) {
    numbers.push_back(*watch.changed_.begin());
    watch.changed_.erase(watch.changed_.begin());
  }
  return numbers;
}

bool WatchHub::TakeDue(JobWatch& watch) {
  absl::MutexLock lock(&mu_);
  return std::exchange(watch.due_, false);
}

}  // namespace muster
