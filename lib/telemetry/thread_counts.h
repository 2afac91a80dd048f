// Metrics of a thread that handles millions of messages a second.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "prometheus/client_metric.h"

namespace muster {

// What one thread counts, with plain stores: a prometheus::Counter costs a locked instruction each
// time, and a miss where threads share it. Only that thread writes; any may read.
class ThreadCount {
 public:
  void Add(int64_t count) {
    count_.store(count_.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
  }
  int64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> count_ = 0;
};

// Likewise, a histogram.
class ThreadHistogram {
 public:
  // `unit`: what an observed 1 is in the histogram, whose bucket boundaries are `bounds`.
  ThreadHistogram(std::vector<double> bounds, double unit);

  // `quantity`, so many times.
  void Observe(int64_t quantity, int64_t times = 1);
  // Adds what was observed to `sum`, which is empty or comes from one with the same boundaries.
  void AddTo(prometheus::ClientMetric::Histogram& sum) const;

 private:
  const std::vector<double> bounds_;
  const double unit_;
  std::vector<ThreadCount> counts_;  // by bucket; the last is beyond all boundaries
  ThreadCount sum_;                  // in units
};

}  // namespace muster
