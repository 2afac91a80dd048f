#include "lib/concurrency/steady_wait.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

// Longer timeouts count as infinite; this keeps deadlines from overflowing.
constexpr absl::Duration kTimeoutMax = absl::Hours(24 * 365);

// The deadline of a wait without a limit. std::condition_variable::wait() is not used, because
// libstdc++ 12 gave it a new symbol version (GLIBCXX_3.4.30). A program that imports it does not
// start on systems with libstdc++ 11.
constexpr Clock::time_point kNever = Clock::time_point::max();

// One call of AwaitFor(), on its caller's stack.
struct Waiter {
  absl::Mutex* mu;
  const absl::Condition* condition;
  Clock::time_point deadline;
  bool expired = false;  // guarded by *mu

  // The fields below belong to the alarm clock.
  enum class State { kWaiting, kBeingWoken, kWoken } state = State::kWaiting;
  Waiter* previous = nullptr;
  Waiter* next = nullptr;
};

bool IsOver(Waiter* waiter) { return waiter->expired || waiter->condition->Eval(); }

// Wakes waiters at their deadlines. Lock order: waiters take its mutex while they hold theirs, so
// its thread must release its own mutex before it takes theirs.
class AlarmClock {
 public:
  // Never destroyed, because threads may wait while the process ends.
  static AlarmClock& Instance() {
    static AlarmClock* const instance = new AlarmClock();
    return *instance;
  }

  void Add(Waiter& waiter) {
    std::lock_guard lock(mu_);
    // Search from the end: most new deadlines are the latest, because waits of one kind have one
    // length.
    Waiter* before = last_;
    while (before != nullptr && waiter.deadline < before->deadline) before = before->previous;
    waiter.previous = before;
    waiter.next = before == nullptr ? first_ : before->next;
    (waiter.next == nullptr ? last_ : waiter.next->previous) = &waiter;
    (before == nullptr ? first_ : before->next) = &waiter;
    if (before == nullptr) changed_.notify_one();
  }

  // Returns false if the waiter is being woken. Then AwaitWoken() must follow, without the waiter's
  // mutex.
  bool Remove(Waiter& waiter) {
    std::lock_guard lock(mu_);
    if (waiter.state == Waiter::State::kWoken) return true;
    if (waiter.state == Waiter::State::kBeingWoken) return false;
    Unlink(waiter);
    return true;
  }

  void AwaitWoken(const Waiter& waiter) {
    std::unique_lock lock(mu_);
    woken_.wait_until(lock, kNever, [&] { return waiter.state == Waiter::State::kWoken; });
  }

 private:
  AlarmClock() {
    std::thread([this] { Run(); }).detach();
  }

  void Unlink(Waiter& waiter) {
    (waiter.previous == nullptr ? first_ : waiter.previous->next) = waiter.next;
    (waiter.next == nullptr ? last_ : waiter.next->previous) = waiter.previous;
  }

  void Run() {
    std::unique_lock lock(mu_);
    for (;;) {
      // Copy the deadline: the wait reads it once more at its end, when the waiter may be gone.
      const Clock::time_point deadline = first_ == nullptr ? kNever : first_->deadline;
      if (deadline > Clock::now()) {
        changed_.wait_until(lock, deadline);
      } else {
        // AwaitFor() keeps `due` on its stack until kWoken. mu_ must be released before due.mu is
        // taken, because waiters take them in the other order.
        Waiter& due = *first_;
        Unlink(due);
        due.state = Waiter::State::kBeingWoken;
        lock.unlock();
        {
          absl::MutexLock waiters(due.mu);
          due.expired = true;
        }
        lock.lock();
        due.state = Waiter::State::kWoken;
        woken_.notify_all();
      }
    }
  }

  std::mutex mu_;
  std::condition_variable changed_;  // signalled when first_ changes
  std::condition_variable woken_;
  Waiter* first_ = nullptr;  // sorted by deadline
  Waiter* last_ = nullptr;
};

}  // namespace

absl::Duration SteadyNow() { return absl::FromChrono(Clock::now().time_since_epoch()); }

bool AwaitFor(absl::Mutex* mu, const absl::Condition& condition, absl::Duration timeout) {
  if (condition.Eval()) return true;
  if (timeout <= absl::ZeroDuration()) return false;
  if (timeout > kTimeoutMax) {
    mu->Await(condition);
    return true;
  }
  Waiter waiter{.mu = mu,
                .condition = &condition,
                .deadline = Clock::now() + absl::ToChronoNanoseconds(timeout)};
  AlarmClock& alarm = AlarmClock::Instance();
  alarm.Add(waiter);
  mu->Await(absl::Condition(IsOver, &waiter));
  if (!alarm.Remove(waiter)) {
    // The alarm's thread still uses `waiter`, and needs *mu to finish.
    mu->Unlock();
    alarm.AwaitWoken(waiter);
    mu->Lock();
  }
  return condition.Eval();
}

}  // namespace muster
