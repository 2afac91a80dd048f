// Ctrl-C and SIGTERM as events that commands can wait for.
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

// Handles SIGINT and SIGTERM for the whole process. Construct it before any other thread exists.
//
// If no callback is registered, a signal ends the process at once with exit code 128 + its number.
// The second signal always does. Exception: a second signal within 250 ms is ignored, because GNU
// timeout signals its command and then the whole group. Thread-safe.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();

  // Returns the number of the first signal, or 0 if none came.
  int signal() const { return signal_; }

  // Blocks until a signal comes, for up to `timeout`. Returns whether one came. Requires: a
  // Registration exists; otherwise the signal ends the process.
  bool WaitFor(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // Calls `on_signal` when a signal comes, or at once if one has come. The call is made under the
  // lock, usually on another thread: it must be quick and must not touch the Interrupt. The
  // destructor waits for a call in progress.
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
  absl::Duration first_at_;  // used only by the thread
  std::atomic<bool> stopping_ = false;
  absl::Mutex mu_;
  int next_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int, std::function<void()>> callbacks_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last, because it uses the other members
};

}  // namespace muster::cli
