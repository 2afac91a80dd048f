// The event loop of a thread's transports: it polls descriptors and puts the thread to sleep.
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

// An epoll instance that belongs to one thread. The transports of that thread register their
// descriptors here. Only Wake() and bell() may be used by other threads and processes.
class EventLoop {
 public:
  // Receives the events of one or more descriptors. Called from Look() and Wait(). Ready() only
  // records the event for Progress(): it must not watch or unwatch a descriptor, or call a
  // receiver.
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void Ready(uint32_t events) = 0;  // EPOLLIN, ...
  };

  // A waiting thread's sources of work besides its descriptors.
  class Sleeper {
   public:
    virtual ~Sleeper() = default;
    // Whether Progress() would do something. Makes no system call.
    virtual bool HasNews() const = 0;
    // Called when the thread has nothing to do. Wakes the peers that sleep until this thread has
    // done its part.
    virtual void WakePeers() {}
    // Called when the thread is about to sleep. Returns false if there is news. After it returned
    // true, any news makes a descriptor ready.
    virtual bool PrepareToSleep() { return !HasNews(); }
    // The longest time until Progress() must run, even if nothing happens.
    virtual absl::Duration SleepMax() const { return absl::InfiniteDuration(); }
  };

  // Returns UNAVAILABLE if the kernel provides no epoll instance, and RESOURCE_EXHAUSTED if it
  // provides no bell or no watch.
  static absl::StatusOr<std::unique_ptr<EventLoop>> Create(PollBudgetOptions polling = {});
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Calls epoll_ctl(2) with the same `events`. Returns RESOURCE_EXHAUSTED if the kernel's or the
  // user's limit is reached.
  absl::Status Watch(int fd, uint32_t events, Handler* handler);
  void Change(int fd, uint32_t events, Handler* handler);
  // Stops watching the descriptor: `handler` is not called for it again. Call before closing the
  // descriptor.
  void Unwatch(int fd, Handler* handler);

  // Calls the handlers of all ready descriptors. Returns the number of these descriptors, which
  // includes the bell.
  int Look();
  // Calls Look() if it is due. Looking is a system call, so a thread with idle descriptors looks
  // only now and then. Call this at the start of each Progress(), with the number of `events` that
  // the previous Progress() handled.
  void LookIfDue(int events);

  // Blocks until `sleeper` has news, a descriptor is ready or Wake() is called, but at most for
  // `timeout` and sleeper.SleepMax(). Polls while the budget allows it, then sleeps.
  void Wait(Sleeper& sleeper, absl::Duration timeout);

  // Ends the current or the next Wait(). Thread-safe.
  void Wake();
  // The bell with which other processes wake this thread. Ringing it ends a sleep. A ring before a
  // Wait() may not end that Wait(), because a look at the descriptors may consume the ring first.
  const Doorbell& bell() const { return bell_; }

 private:
  EventLoop(FileDescriptor epoll, Doorbell bell, PollBudgetOptions polling);

  int Dispatch(absl::Duration timeout);
  bool TakeWake();
  bool LookIsDue();

  const FileDescriptor epoll_;
  const Doorbell bell_;
  const bool regardless_;  // polls whatever it costs
  PollBudget budget_;
  std::array<epoll_event, 64> ready_;
  int ready_count_ = 0;  // nonzero only while handlers are being called
  // Whether each turn looks at the descriptors. False while events come only from shared memory; an
  // event of a descriptor sets it again.
  bool descriptors_active_ = true;
  int turns_without_look_ = 0;
  std::atomic<bool> woken_ = false;
  std::atomic<bool> sleeping_ = false;  // Wake() must ring the bell
};

}  // namespace muster
