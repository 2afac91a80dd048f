// What jobs' metrics.jsonl say, as curves: any range of steps in as many points as somebody can
// look at.
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
  std::vector<std::string> names;  // of MetricSeries::Names(); empty: all
  int64_t from = 0;                // steps, both included
  int64_t to = std::numeric_limits<int64_t>::max();
  int64_t points = 1000;  // at most so many of each series; 1..MetricSeries::kPointsMax
};

// The values of [first_step, last_step]: smallest and largest, so that no spike is lost on the way,
// and the last.
struct SeriesPoint {
  int64_t first_step = 0;
  int64_t last_step = 0;
  MetricRange values;
  // When they had ended, in seconds since 1970; NaN: the log does not say it.
  double first_time = std::numeric_limits<double>::quiet_NaN();
  double last_time = std::numeric_limits<double>::quiet_NaN();
};

struct Series {
  std::string name;
  std::vector<SeriesPoint> points;  // by step
};

struct JobSeries {
  std::vector<Series> series;  // in the order of the request
  int64_t first_step = 0;      // of the whole log; -1: there is none yet
  int64_t last_step = -1;
};

// Thread-safe. A job's whole log is read once, at some 300 MB a second; what is kept of it is a
// pyramid of at most 3 MB, whatever its length, and after that only what was appended is read. So a
// million steps are answered in a few milliseconds, the first time in under a second. A range that
// the pyramid is too coarse for is read from the file, where the pyramid knows it to be.
//
// The pyramids are in memory alone, and the least recently used go: an index file would save a
// restarted coordinator that second, and would have to be synced with the log, checked after a
// crash and deleted with the job.
//
// Logs of running jobs are read while they are written: a line counts once it is finished. One that
// became shorter was cut by its writer, and is read anew.
class MetricSeries {
 public:
  static constexpr int64_t kPointsMax = 10'000;
  // A range of no more steps is read from the file where the pyramid has fewer points than wanted.
  static constexpr int64_t kStepsReadMax = 32 << 10;
  static constexpr int64_t kMemoryBytesMax = 64 << 20;

  // loss, gradient_norm, learning_rate, samples_per_second, loss_scale; evaluation_loss,
  // evaluation_accuracy.
  static const std::vector<std::string>& Names();
  static bool IsEvaluation(absl::string_view name);

  explicit MetricSeries(int64_t memory_bytes_max = kMemoryBytesMax)
      : memory_bytes_max_(memory_bytes_max) {}

  // Of the log at `path`; no points of a log that does not exist (the job has not begun), nor of a
  // series that it does not have. A value that was not finite is NaN. A point at either end may
  // reach beyond the range by less than its own length. Waits for the disk, and for others who read
  // the same log.
  //
  // INVALID_ARGUMENT (reason "INVALID_REQUEST"): an unknown name, a range that ends before it
  // begins, a number of points out of bounds. Reason "METRICS_LOG_FAILED": the disk.
  absl::StatusOr<JobSeries> Read(const std::string& path, const SeriesRequest& request)
      ABSL_LOCKS_EXCLUDED(mu_);

  int64_t memory_bytes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Log;
  struct Slot {
    std::string path;
    std::shared_ptr<Log> log;
    bool busy = false;         // somebody reads, without the lock
    int64_t memory_bytes = 0;  // when last used
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
