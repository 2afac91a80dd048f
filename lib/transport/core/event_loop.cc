#include "lib/transport/core/event_loop.h"

#include <glog/logging.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// While events come only from shared memory, the thread looks at the descriptors once in this many
// turns. A look is a system call; a turn over shared memory takes only a few loads.
constexpr int kTurnsPerLook = 16;
// The longest PollUntil() before the thread looks at all descriptors, or tries to sleep.
constexpr std::chrono::nanoseconds kPollWithoutSleep = std::chrono::milliseconds(1);
constexpr absl::Duration kSleepMax = absl::Hours(24);

}  // namespace

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Create(PollBudgetOptions polling) {
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return absl::UnavailableError(absl::StrCat("epoll: ", std::strerror(errno)));
  ASSIGN_OR_RETURN(Doorbell bell, Doorbell::Create());
  auto loop =
      absl::WrapUnique(new EventLoop(std::move(epoll), std::move(bell), std::move(polling)));
  RETURN_IF_ERROR(loop->Watch(loop->bell_.fd(), EPOLLIN | EPOLLET, nullptr));
  return loop;
}

EventLoop::EventLoop(FileDescriptor epoll, Doorbell bell, PollBudgetOptions polling)
    : epoll_(std::move(epoll)),
      bell_(std::move(bell)),
      regardless_(polling.regardless),
      budget_(std::move(polling)) {}

absl::Status EventLoop::Watch(int fd, uint32_t events, Handler* handler) {
  epoll_event event{.events = events, .data = {.ptr = handler}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  const int error = errno;
  CHECK(error == ENOSPC || error == ENOMEM) << "epoll: " << std::strerror(error);
  return absl::ResourceExhaustedError(
      absl::StrCat("epoll: ", std::strerror(error), " (fs.epoll.max_user_watches)"));
}

void EventLoop::Change(int fd, uint32_t events, Handler* handler) {
  epoll_event event{.events = events, .data = {.ptr = handler}};
  CHECK_EQ(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event), 0) << std::strerror(errno);
}

// Removes the descriptor from the epoll instance, and does not leave that to close(): a forked
// child may still have the descriptor open, and its events would still name the handler.
void EventLoop::Unwatch(int fd, Handler* handler) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  for (int i = 0; i < ready_count_; ++i) {
    if (ready_[i].data.ptr == handler) ready_[i].data.ptr = nullptr;
  }
}

int EventLoop::Look() { return Dispatch(absl::ZeroDuration()); }

void EventLoop::LookIfDue(int events) {
  if (LookIsDue() && Look() == 0 && events > 0) descriptors_active_ = false;
}

bool EventLoop::LookIsDue() {
  return descriptors_active_ || ++turns_without_look_ >= kTurnsPerLook;
}

// Returns the number of ready descriptors, including the bell.
int EventLoop::Dispatch(absl::Duration timeout) {
  turns_without_look_ = 0;
  int milliseconds = static_cast<int>(
      absl::ToInt64Milliseconds(absl::Ceil(std::min(timeout, kSleepMax), absl::Milliseconds(1))));
  const int size = static_cast<int>(ready_.size());
  int handled = 0, count = 0;
  do {
    ready_count_ = std::max(0, epoll_wait(epoll_.get(), ready_.data(), size, milliseconds));
    milliseconds = 0;
    for (int i = 0; i < ready_count_; ++i) {
      auto* handler = static_cast<Handler*>(ready_[i].data.ptr);
      if (handler == nullptr) continue;
      handler->Ready(ready_[i].events);
      descriptors_active_ = true;
    }
    count = std::exchange(ready_count_, 0);
    handled += count;
  } while (count == size);  // a full array: more may be ready
  return handled;
}

// Consumes a wake and returns whether there was one. A load comes first because an exchange takes
// the cache line from the thread that wakes this one. The load may be relaxed: if it misses a wake,
// a later load finds it, at the latest the one in Wait() before the thread sleeps.
bool EventLoop::TakeWake() {
  return woken_.load(std::memory_order_relaxed) && woken_.exchange(false);
}

void EventLoop::Wait(Sleeper& sleeper, absl::Duration timeout) {
  timeout = std::max(std::min(timeout, sleeper.SleepMax()), absl::ZeroDuration());
  sleeper.WakePeers();
  const auto news = [&] { return TakeWake() || sleeper.HasNews() || (LookIsDue() && Look() > 0); };
  const auto limit = std::min<std::chrono::nanoseconds>(absl::ToChronoNanoseconds(timeout),
                                                        std::chrono::hours(24));
  const PollBudget::Time end = regardless_ ? PollBudget::Clock::now() + limit : PollBudget::Time();
  do {
    if (budget_.PollUntil(news, std::min(limit, kPollWithoutSleep))) return;
    // Sequentially consistent, as in Wake(): either this thread sees woken_, or the waking thread
    // sees sleeping_ and rings.
    sleeping_.store(true);
    const bool sleep = !woken_.load() && sleeper.PrepareToSleep();
    const int ready = sleep ? Dispatch(regardless_ ? absl::ZeroDuration() : timeout) : 1;
    // Relaxed: a Wake() that does not see it yet rings in vain, and one later sleep ends too early.
    sleeping_.store(false, std::memory_order_relaxed);
    if (ready > 0) break;
  } while (regardless_ && PollBudget::Clock::now() < end);
  // The wake ended this Wait(), so it is consumed here. The exchange reads the flag instead of only
  // clearing it. A Wake() may arrive after the last load above. Its caller wrote something first,
  // for example a flag of news; the exchange makes that write visible after this Wait().
  //
  // A plain store would lose the wake. On processors that let a later load overtake a store, the
  // thread would not see the news either.
  woken_.exchange(false, std::memory_order_acquire);
}

// Wake() uses an exchange, and so does every place that clears the flag. If several threads wake
// this one, it reads only the last flag value. The chain of exchanges makes the earlier threads'
// writes visible too.
void EventLoop::Wake() {
  woken_.exchange(true);
  if (sleeping_.load()) bell_.Ring();
}

}  // namespace muster
