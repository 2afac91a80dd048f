// Decides how long a waiting thread may poll before it sleeps.
#pragma once

#include <sched.h>

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// Returns the share of a processor that each poller may use, 0 to 1. Of `cpus` processors' worth of
// time (UsableCpuTime()) it subtracts `busy_threads` computing threads, and divides the rest among
// `pollers` threads. Returns 0 if `cpus` is less than 2: a poller would hold the processor that its
// peer needs.
double PollShare(double cpus, int busy_threads, int pollers);

struct PollBudgetOptions {
  // Share of a processor that may be used for polling, 0 to 1: PollShare(). 0 sleeps at once.
  double share = 0;
  // Longest polling of one wait. It is about the cost of falling asleep and being woken, so that
  // polling in vain at most doubles the cost of a wait.
  std::chrono::nanoseconds poll_max = std::chrono::microseconds(50);
  // Polls regardless of the machine's load; only poll_max ends it. For measurements.
  bool regardless = false;

  std::string load_file = "/proc/loadavg";  // of the whole machine, also inside a container
  int machine_cpus = 0;                     // 0: those online
};

// How a process waits.
enum class PollMode { kAuto, kAlways, kNever };

// Parses "auto", "always" or "never". Returns INVALID_ARGUMENT for another word.
absl::StatusOr<PollMode> ParsePollMode(absl::string_view word);

// Returns the options for each of `pollers` threads of a process with `busy_threads` other,
// computing threads. With kAlways a thread polls for up to an hour in each wait.
PollBudgetOptions PollingOf(PollMode mode, int busy_threads, int pollers);

// Polling responds 5 to 10 times faster than sleeping, but takes the processor from other threads.
// So a thread polls only under these conditions.
// - It stays within its share of the processor time that its cgroup allows, which accumulates as
//   time passes.
// - The machine has no more runnable threads than processors, counting those of other programs. Two
//   pollers on two busy processors would starve the threads for which they wait.
// - It has not just seen a gap in its polling, which shows that another thread needed this
//   processor.
// - Polling pays: after several waits in vain it polls only now and then.
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

  // Polls `ready`, at least once. Returns true once `ready` returns true, and false if the thread
  // should sleep. `limit` is the caller's own limit.
  template <typename Ready>
  bool PollUntil(const Ready& ready, std::chrono::nanoseconds limit) {
    if (ready()) return true;
    if (options_.share <= 0 && !options_.regardless) return false;
    Time now = Clock::now();
    if (!Begin(now)) return false;
    const Time end = limit < options_.poll_max ? now + limit : Time::max();
    bool held = false;
    while (now < end && MayPoll(now)) {
      if (YieldIsDue(now)) sched_yield();  // cheap if no other thread wants the processor
      for (int look = 0; look < kLooksPerTurn && !held; ++look) held = ready();
      if (held) break;
      now = Clock::now();
    }
    End(now, held);
    return held;
  }

  // The steps of PollUntil, with time as an argument. Returns whether a wait that begins at `now`
  // may poll.
  bool Begin(Time now);
  // Returns whether polling may continue. Called at every turn.
  bool MayPoll(Time now);
  // Ends the polling. `held`: the condition became true.
  void End(Time now, bool held);

 private:
  static constexpr int kLooksPerTurn = 4;  // reading the clock costs as much as these checks

  bool YieldIsDue(Time now);
  void Earn(Time now);
  bool Crowded(Time now);
  bool WorthTrying();

  const PollBudgetOptions options_;
  const int machine_cpus_;
  const int load_fd_;
  std::chrono::nanoseconds allowance_;  // time that may be spent polling now
  Time earned_;                         // time up to which the allowance is credited
  Time begin_, turn_, yield_;           // of the present polling
  Time rest_until_;
  Time load_read_;
  bool crowded_ = false;
  int vain_ = 0;     // consecutive waits that polled in vain
  int skipped_ = 0;  // waits without polling since then
};

}  // namespace muster
