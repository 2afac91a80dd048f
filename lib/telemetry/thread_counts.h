// Metrics for threads that handle millions of messages per second.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "prometheus/client_metric.h"

namespace muster {

// A counter that one thread writes, with plain stores; any thread may read it. A
// prometheus::Counter costs a locked instruction each time, and a cache miss if threads share it.
class ThreadCount {
 public:
  void Add(int64_t count) {
    count_.store(count_.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
  }
  int64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> count_ = 0;
};

// A histogram that one thread writes and any thread may read.
class ThreadHistogram {
 public:
  // `unit`: the value of an observed 1 in the histogram. `bounds`: the bucket boundaries.
  ThreadHistogram(std::vector<double> bounds, double unit);

  // Observes `quantity`, `times` times.
  void Observe(int64_t quantity, int64_t times = 1);
  // Adds the observations to `sum`, which must be empty or have the same boundaries.
  void AddTo(prometheus::ClientMetric::Histogram& sum) const;

 private:
  const std::vector<double> bounds_;
  const double unit_;
  std::vector<ThreadCount> counts_;  // by bucket; the last one is above all boundaries
  ThreadCount sum_;                  // in units
};

}  // namespace muster
