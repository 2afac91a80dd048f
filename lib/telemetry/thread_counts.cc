#include "lib/telemetry/thread_counts.h"

#include <limits>
#include <utility>

namespace muster {

ThreadHistogram::ThreadHistogram(std::vector<double> bounds, double unit)
    : bounds_(std::move(bounds)), unit_(unit), counts_(bounds_.size() + 1) {}

// A linear search is fast: most quantities are small, and there are few boundaries.
void ThreadHistogram::Observe(int64_t quantity, int64_t times) {
  const double value = static_cast<double>(quantity) * unit_;
  size_t bucket = 0;
  while (bucket < bounds_.size() && bounds_[bucket] < value) ++bucket;
  counts_[bucket].Add(times);
  sum_.Add(quantity * times);
}

void ThreadHistogram::AddTo(prometheus::ClientMetric::Histogram& sum) const {
  sum.bucket.resize(counts_.size());
  uint64_t cumulative = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    cumulative += static_cast<uint64_t>(counts_[i].count());
    sum.bucket[i].cumulative_count += cumulative;
    sum.bucket[i].upper_bound =
        i < bounds_.size() ? bounds_[i] : std::numeric_limits<double>::infinity();
  }
  sum.sample_count += cumulative;
  sum.sample_sum += static_cast<double>(sum_.count()) * unit_;
}

}  // namespace muster
