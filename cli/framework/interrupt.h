// Ctrl-C and SIGTERM as something a command can wait for.
#pragma once

#include <pthread.h>

#include <atomic>
#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace muster::cli {

// Takes SIGINT and SIGTERM for the whole process: construct it before any other thread exists.
// While nothing is registered a signal ends the process at once with 128 + its number; the second
// signal always does, but within a quarter of a second it is the first one, told twice (GNU timeout
// signals its command and then the whole group). Thread-safe.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();

  // The first signal that came; 0: none.
  int signal() const { return signal_; }

  // Waits up to `timeout`; true when a signal has come.
  bool WaitFor(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // Calls `on_signal` once, on another thread and under the lock, when a signal comes (at once if
  // it has): it must be quick and must not touch this object. Destroying the registration waits for
  // a call in progress.
  class Registration {
   public:
    Registration(Interrupt& interrupt, std::function<void()> on_signal);
    ~Registration();
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

   private:
    Interrupt& interrupt_;
    int id_;
  };

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  std::atomic<int> signal_ = 0;
  absl::Duration first_at_;  // of the thread's
  std::atomic<bool> stopping_ = false;
  absl::Mutex mu_;
  int next_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int, std::function<void()>> callbacks_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: uses the others
};

}  // namespace muster::cli
