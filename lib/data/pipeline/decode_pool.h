// The threads that read the samples of a job.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/data/stage_times.h"

namespace muster {

// Thread-safe. Several queues share the threads.
class DecodePool {
 public:
  // The threads have the nice value `nice` more than the process. Requires: threads >= 1.
  explicit DecodePool(int threads, int nice = 0);
  // Requires: all queues are destroyed.
  ~DecodePool();

  // The work of one reader. Thread-safe.
  class Queue {
   public:
    // The pool outlives the queue.
    explicit Queue(DecodePool& pool) : pool_(pool) {}
    // Drops the parts that have not begun. Blocks until the others have ended.
    ~Queue();
    Queue(const Queue&) = delete;
    Queue& operator=(const Queue&) = delete;

    // Calls `run` once for each part in [0, parts), on several threads at a time. Calls `ended`
    // after each of them, when usage() contains the part; it may be null. Parts begin in the order
    // in which they were added to the pool, so a thread that is free begins with the next call's
    // parts while the last ones of this call run. Does not block.
    void Add(int64_t parts, std::function<void(int64_t part)> run,
             std::function<void()> ended = nullptr);

   private:
    friend class DecodePool;
    DecodePool& pool_;
    int running_ = 0;  // guarded by pool_.mu_
  };

  int threads() const { return static_cast<int>(threads_.size()); }

  // The time and work of the threads since their start.
  struct Usage {
    StageTimes times;     // in the parts that have ended
    absl::Duration idle;  // without a part to run, added up over the threads
  };
  Usage usage() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Calls {
    std::function<void(int64_t)> run;
    std::function<void()> ended;
  };
  struct Work {
    Queue* queue = nullptr;
    int64_t next = 0;  // part
    int64_t parts = 0;
    std::shared_ptr<const Calls> calls;
  };

  void Run(int nice);
  // Blocks until there is a part, and returns it as `next`. Returns nothing after the end.
  std::optional<Work> Take() ABSL_LOCKS_EXCLUDED(mu_);
  void AddTimes(const StageTimes& times) ABSL_LOCKS_EXCLUDED(mu_);
  void Ended(Queue* queue) ABSL_LOCKS_EXCLUDED(mu_);

  mutable absl::Mutex mu_;
  std::deque<Work> work_ ABSL_GUARDED_BY(mu_);  // each with a part to begin
  StageTimes times_ ABSL_GUARDED_BY(mu_);
  absl::Duration idle_ ABSL_GUARDED_BY(mu_);         // of waits that are over
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;             // threads
  absl::Duration waits_began_ ABSL_GUARDED_BY(mu_);  // the sum over the waiting threads
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::jthread> threads_;  // last, because they use all of the above
};

}  // namespace muster
