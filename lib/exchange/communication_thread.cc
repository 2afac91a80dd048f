#include "lib/exchange/communication_thread.h"

#include <utility>

#include "absl/time/time.h"
#include "lib/concurrency/short_slices.h"
#include "lib/log/log_scope.h"
#include "lib/status/status.h"

namespace muster {

CommunicationThread::CommunicationThread(TransportFactory transport, size_t posts_max, Work* work)
    : make_transport_(std::move(transport)), work_(work) {
  taken_.reserve(posts_max);
  absl::MutexLock lock(&mu_);
  posted_.reserve(posts_max);
}

absl::Status CommunicationThread::Start(std::vector<absl::Span<std::byte>> memory) {
  memory_ = std::move(memory);
  thread_ = std::jthread([this, fields = LogScope::Current()] {
    const LogScope scope(fields);
    Run();
  });
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&opened_));
  return open_error_;
}

void CommunicationThread::Post(ChunkId chunk) {
  bool first = false;
  {
    absl::MutexLock lock(&mu_);
    first = posted_.empty();
    posted_.push_back(chunk);
    has_posts_.store(true, std::memory_order_release);
  }
  if (first) Wake();
}

void CommunicationThread::Wake() {
  if (Transport* transport = waking_.load(std::memory_order_acquire)) transport->Wake();
}

void CommunicationThread::Close() {
  {
    // keeps the thread from destroying the transport before Wake() returns
    absl::MutexLock lock(&mu_);
    closing_.store(true, std::memory_order_release);
    Wake();
  }
  if (thread_.joinable()) thread_.join();
}

// ---------------------------------------------------------------- the thread

void CommunicationThread::Run() {
  // every step waits for this thread, and devices and ps may need the same cores
  AskForShortSlices();
  const absl::Status opened = Open();
  if (opened.ok()) waking_.store(transport_.get(), std::memory_order_release);
  {
    absl::MutexLock lock(&mu_);
    open_error_ = opened;
    opened_ = true;
  }
  if (opened.ok()) {
    while (!closing()) {
      work_->Turn(TakePosted());
      if (transport_->Progress() == 0) transport_->Wait(absl::Seconds(1));
    }
    work_->Closing();
    absl::MutexLock lock(&mu_);
    // Relaxed: only Close() may still call Wake(), and it takes the lock too.
    waking_.store(nullptr, std::memory_order_relaxed);
  }
  transport_.reset();
  registrations_.clear();
}

absl::Status CommunicationThread::Open() {
  ASSIGN_OR_RETURN(transport_, make_transport_());
  transport_->SetReceiver(work_);
  for (const absl::Span<std::byte> span : memory_) {
    if (span.empty()) continue;
    ASSIGN_OR_RETURN(registrations_.emplace_back(), transport_->RegisterMemory(span));
  }
  return work_->Open(*transport_);
}

absl::Span<const ChunkId> CommunicationThread::TakePosted() {
  taken_.clear();
  if (!has_posts_.load(std::memory_order_acquire)) return taken_;
  absl::MutexLock lock(&mu_);
  taken_.swap(posted_);
  // Cleared under the lock that Post() takes too, so the next post sets it again.
  has_posts_.store(false, std::memory_order_relaxed);
  return taken_;
}

}  // namespace muster
