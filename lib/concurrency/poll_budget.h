// How long a thread that waits may poll before it sleeps.
#pragma once

#include <sched.h>

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// What remains for polling: of `cpus` processors' worth of time (UsableCpuTime()) after
// `busy_threads` threads that compute, shared by `pollers` threads, in processors per poller; 0 to
// 1. None where `cpus` is less than 2: a poller would hold the processor that its peer needs.
double PollShare(double cpus, int busy_threads, int pollers);

struct PollBudgetOptions {
  // Processor time per time that may go into polling, 0 to 1: PollShare(). 0 sleeps at once.
  double share = 0;
  // Longest polling of one wait: about what falling asleep and being woken costs, so that polling
  // in vain at most doubles the price of a wait.
  std::chrono::nanoseconds poll_max = std::chrono::microseconds(50);
  // Polls whatever the machine does; only poll_max ends it. For measuring.
  bool regardless = false;

  std::string load_file = "/proc/loadavg";  // of the whole machine, also inside a container
  int machine_cpus = 0;                     // 0: those online
};

// How a process is told to wait.
enum class PollMode { kAuto, kAlways, kNever };

// "auto", "always", "never"; INVALID_ARGUMENT for another word.
absl::StatusOr<PollMode> ParsePollMode(absl::string_view word);

// Options of each of `pollers` threads of a process in which `busy_threads` others compute. Always:
// it never sleeps.
PollBudgetOptions PollingOf(PollMode mode, int busy_threads, int pollers);

// Polling answers 5-10 times sooner than sleeping does, and costs whoever else needs the processor.
// So a thread polls only
// - within its share of the processor time that its cgroup leaves, earned as time passes;
// - while no more threads are runnable on the machine than it has processors, its own and other
//   programs' alike: two pollers on two busy processors would starve whom they wait for;
// - not for a while after it saw a gap in its polling: somebody else needed this processor;
// - as long as it is worth it: after some waits in vain it only tries now and then.
//
// Thread-compatible; one per waiting thread. Allocates nothing after construction.
class PollBudget {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  explicit PollBudget(PollBudgetOptions options = {});
  PollBudget(const PollBudget&) = delete;
  PollBudget& operator=(const PollBudget&) = delete;
  ~PollBudget();

  // Asks `ready` again and again until it holds (true) or the thread should sleep (false). Asks at
  // least once. `limit`: the caller's own.
  template <typename Ready>
  bool PollUntil(const Ready& ready, std::chrono::nanoseconds limit) {
    if (ready()) return true;
    if (options_.share <= 0 && !options_.regardless) return false;
    Time now = Clock::now();
    if (!Begin(now)) return false;
    const Time end = limit < options_.poll_max ? now + limit : Time::max();
    bool held = false;
    while (now < end && MayPoll(now)) {
      if (YieldIsDue(now)) sched_yield();  // costs little when nobody else wants the processor
      for (int look = 0; look < kLooksPerTurn && !held; ++look) held = ready();
      if (held) break;
      now = Clock::now();
    }
    End(now, held);
    return held;
  }

  // The steps of PollUntil, with the time passed in. A wait begins at `now`: may it poll?
  bool Begin(Time now);
  // At every turn of the polling: once more?
  bool MayPoll(Time now);
  // The polling ends, with or without what it waited for.
  void End(Time now, bool held);

 private:
  static constexpr int kLooksPerTurn = 4;  // reading the clock takes as long as they do

  bool YieldIsDue(Time now);
  void Earn(Time now);
  bool Crowded(Time now);
  bool WorthTrying();

  const PollBudgetOptions options_;
  const int machine_cpus_;
  const int load_fd_;
  std::chrono::nanoseconds allowance_;  // what may be polled now
  Time earned_;                         // up to when the allowance is counted
  Time begin_, turn_, yield_;           // of the polling under way
  Time rest_until_;
  Time load_read_;
  bool crowded_ = false;
  int vain_ = 0;     // waits in a row that polled for nothing
  int skipped_ = 0;  // since then
};

}  // namespace muster
