// The one place where a transport's thread looks at descriptors and sleeps.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/concurrency/poll_budget.h"
#include "lib/transport/core/doorbell.h"
#include "lib/transport/core/file_descriptor.h"

namespace muster {

// One epoll instance, of one thread; the transports that the thread uses put their descriptors into
// it. Only Wake() and bell() are for other threads and processes.
class EventLoop {
 public:
  // Of one or more descriptors. Called from Look() and Wait(): it takes a note for Progress() and
  // returns; it watches and unwatches nothing and calls no receiver.
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void Ready(uint32_t events) = 0;  // EPOLLIN, ...
  };

  // What a waiting thread minds besides its descriptors.
  class Sleeper {
   public:
    virtual ~Sleeper() = default;
    // Whether Progress() would do something. No system call.
    virtual bool HasNews() const = 0;
    // The thread has nothing to do: whoever sleeps until it does what it did is woken.
    virtual void WakePeers() {}
    // The thread is about to sleep. False: there is news. After true, what becomes news makes a
    // descriptor ready.
    virtual bool PrepareToSleep() { return !HasNews(); }
    // Progress() is due after this time, whatever happens.
    virtual absl::Duration SleepMax() const { return absl::InfiniteDuration(); }
  };

  // UNAVAILABLE where the kernel gives no descriptor.
  static absl::StatusOr<std::unique_ptr<EventLoop>> Create(PollBudgetOptions polling = {});
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // As epoll_ctl(2); `events` as there. RESOURCE_EXHAUSTED: the kernel or the user has no more.
  absl::Status Watch(int fd, uint32_t events, Handler* handler);
  void Change(int fd, uint32_t events, Handler* handler);
  // Before the descriptor is closed. `handler` hears nothing any more.
  void Unwatch(int fd, Handler* handler);

  // Calls the handlers of what is ready. How many.
  int Look();
  // Look(), where that is due: looking is a system call, so a thread whose descriptors are idle
  // does so now and then. At the beginning of every Progress(); `events`: what the one before
  // handled.
  void LookIfDue(int events);

  // Until `sleeper` has news, a descriptor is ready, Wake() was called or `timeout` passed: polls
  // while the budget allows, then sleeps.
  void Wait(Sleeper& sleeper, absl::Duration timeout);

  // Ends the current or next Wait(). Any thread.
  void Wake();
  // Ringing it ends a sleep; not a Wait() that has not begun. For other processes.
  const Doorbell& bell() const { return bell_; }

 private:
  EventLoop(FileDescriptor epoll, Doorbell bell, PollBudgetOptions polling);

  int Dispatch(absl::Duration timeout);
  bool TakeWake();
  bool LookIsDue();

  const FileDescriptor epoll_;
  const Doorbell bell_;
  const bool regardless_;  // of what polling costs
  PollBudget budget_;
  std::array<epoll_event, 64> ready_;
  int ready_count_ = 0;             // while they are being handled
  bool descriptors_active_ = true;  // more so, lately, than what needs no system call
  int turns_without_look_ = 0;
  std::atomic<bool> woken_ = false;
  std::atomic<bool> sleeping_ = false;  // Wake() has to ring
};

}  // namespace muster
