#include "lib/concurrency/copy_crew.h"

#include <algorithm>
#include <cstring>

#include "lib/concurrency/short_slices.h"

namespace muster {

CopyCrew::~CopyCrew() {
  {
    absl::MutexLock lock(&mutex_);
    ends_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

int CopyCrew::HelpersFor(int cpus) { return std::min(cpus / 4, 3); }

void CopyCrew::Copy(absl::Span<std::byte> to, absl::Span<const std::byte> from) {
  if (from.empty()) return;
  if (helpers_ == 0 || from.size() < kLargeBytes) {
    std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  while (threads_.size() < static_cast<size_t>(helpers_)) {
    threads_.emplace_back([this] { Help(); });
  }
  absl::MutexLock lock(&mutex_);
  to_ = to;
  from_ = from;
  next_ = 0;
  CopyParts();
  // Whoever still copies began before the last part was taken: a part's time at most, if he runs.
  mutex_.Await(absl::Condition(this, &CopyCrew::IsWhole));
  to_ = {};
  from_ = {};
}

size_t CopyCrew::helped() const {
  absl::MutexLock lock(&mutex_);
  return helped_;
}

void CopyCrew::Help() {
  AskForShortSlices();
  absl::MutexLock lock(&mutex_);
  while (true) {
    mutex_.Await(absl::Condition(this, &CopyCrew::HasPartsOrEnds));
    if (ends_) return;
    helped_ += CopyParts();
  }
}

size_t CopyCrew::CopyParts() {
  size_t parts = 0;
  for (; next_ < from_.size(); ++parts) {
    const size_t first = next_, bytes = std::min(kPartBytes, from_.size() - first);
    std::byte* const to = to_.data() + first;
    const std::byte* const from = from_.data() + first;
    next_ += bytes;
    ++copying_;
    mutex_.Unlock();
    std::memcpy(to, from, bytes);
    mutex_.Lock();
    --copying_;
  }
  return parts;
}

}  // namespace muster
