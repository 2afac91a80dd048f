// Reads the metrics.jsonl of jobs as curves: any range of steps in a limited number of points.
#pragma once

#include <cstdint>
#include <limits>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "services/coordinator/records/metric_pyramid.h"

namespace muster {

struct SeriesRequest {
  std::vector<std::string> names;  // from MetricSeries::Names(); empty: all
  int64_t from = 0;                // range of steps, both ends included
  int64_t to = std::numeric_limits<int64_t>::max();
  int64_t points = 1000;  // limit for each series; 1..MetricSeries::kPointsMax
};

// The values of the steps [first_step, last_step]: the smallest and largest, so that spikes stay
// visible, and the last.
struct SeriesPoint {
  int64_t first_step = 0;
  int64_t last_step = 0;
  MetricRange values;
  // When these steps ended, in seconds since 1970; NaN if the log does not have it.
  double first_time = std::numeric_limits<double>::quiet_NaN();
  double last_time = std::numeric_limits<double>::quiet_NaN();
};

struct Series {
  std::string name;
  std::vector<SeriesPoint> points;  // by step
};

struct JobSeries {
  std::vector<Series> series;  // in the order of the request
  int64_t first_step = 0;      // of the whole log; -1 if it is empty
  int64_t last_step = -1;
};

// Reads a job's whole log once, at about 300 MB/s, into a pyramid of at most 3 MB. Later calls only
// read what was appended. So a query over a million steps takes a few milliseconds, and the first
// one less than a second. A range with too few buckets in the pyramid is read from the file, at the
// offset that the pyramid knows.
//
// Pyramids exist only in memory, and the least recently used are dropped. An index file would save
// a restarted coordinator that second. But it would have to be synced with the log, checked after a
// crash and deleted with the job.
//
// A log of a running job is read while it grows: a line counts when it is finished. A log that
// became shorter was truncated by its writer and is read again.
//
// Thread-safe.
class MetricSeries {
 public:
  static constexpr int64_t kPointsMax = 10'000;
  // A range of at most this many steps is read from the file if the pyramid has too few points.
  static constexpr int64_t kStepsReadMax = 32 << 10;
  static constexpr int64_t kMemoryBytesMax = 64 << 20;

  // The names: loss, gradient_norm, learning_rate, samples_per_second, loss_scale; evaluation_loss,
  // evaluation_accuracy.
  static const std::vector<std::string>& Names();
  static bool IsEvaluation(absl::string_view name);

  explicit MetricSeries(int64_t memory_bytes_max = kMemoryBytesMax)
      : memory_bytes_max_(memory_bytes_max) {}

  // Reads the log at `path`. There are no points if the log does not exist (the job has not begun),
  // or for a series that the log does not have. A non-finite value becomes NaN. The first and last
  // point may reach beyond the range by less than their own length. Blocks for the disk, and for
  // other readers of the same log.
  //
  // Returns INVALID_ARGUMENT (reason "INVALID_REQUEST") for an unknown or repeated name, a range
  // that ends before it begins, or a bad number of points. Returns reason "METRICS_LOG_FAILED" if
  // the disk fails.
  absl::StatusOr<JobSeries> Read(const std::string& path, const SeriesRequest& request)
      ABSL_LOCKS_EXCLUDED(mu_);

  int64_t memory_bytes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Log;
  struct Slot {
    std::string path;
    std::shared_ptr<Log> log;
    bool busy = false;         // a reader uses it without the lock
    int64_t memory_bytes = 0;  // at its last use
  };

  std::shared_ptr<Log> Take(const std::string& path) ABSL_LOCKS_EXCLUDED(mu_);
  void GiveBack(const std::string& path, bool forget) ABSL_LOCKS_EXCLUDED(mu_);
  void ForgetOld() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int64_t memory_bytes_max_;
  mutable absl::Mutex mu_;
  std::list<Slot> slots_ ABSL_GUARDED_BY(mu_);  // most recently used first
  absl::flat_hash_map<std::string, std::list<Slot>::iterator> by_path_ ABSL_GUARDED_BY(mu_);
  int64_t memory_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace muster
