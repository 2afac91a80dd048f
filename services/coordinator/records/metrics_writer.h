// Steps and evaluations on their way to the jobs' metrics.jsonl.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "services/coordinator/records/metrics_log.h"
#include "services/coordinator/records/progress_ledger.h"

namespace muster {

// One thread appends what all jobs have to tell and syncs it; only then is it told to be durable,
// so that workers forget nothing that a power cut could take. Whoever gives it records waits for no
// disk. A disk that does not take them (it is full) is tried again every second; what waits is
// bounded by what workers hold back, limits::kStepRecordsHeldMax of a job. Thread-safe.
class MetricsWriter {
 public:
  struct Options {
    // Called on the writer's thread, without any lock.
    std::function<void(uint64_t job, const RecordsBefore& durable)> durable;
    absl::Duration retry = absl::Seconds(1);
  };
  explicit MetricsWriter(Options options);
  // Writes what waits, but for what the disk does not take.
  ~MetricsWriter();

  // Records of a job, whose log is at `path`, or none: `up_to` is told once all that was given for
  // the job is durable.
  void Append(uint64_t job, const std::string& path, std::vector<StepSummary> steps,
              std::vector<EvaluationSummary> evaluations, const RecordsBefore& up_to)
      ABSL_LOCKS_EXCLUDED(mu_);
  // No more records will come: its file is closed once it has those that wait. Nothing is told of
  // them.
  void Close(uint64_t job) ABSL_LOCKS_EXCLUDED(mu_);
  // The same, and drops those that wait, of a job whose folder is about to go; returns when the
  // file is closed.
  void Discard(uint64_t job) ABSL_LOCKS_EXCLUDED(mu_);

  // Why what was given for the job is not on the disk; OK: it is, or is about to be.
  absl::Status Trouble(uint64_t job) const ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until all that was given is durable, and told, but for what the disk does not take.
  void Settle() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Pending {
    std::vector<StepSummary> steps;
    std::vector<EvaluationSummary> evaluations;
    bool any() const { return !steps.empty() || !evaluations.empty(); }
  };
  struct Log {
    std::string path;
    Pending pending;
    RecordsBefore up_to;  // of `pending`
    bool told = true;     // that all before `up_to` are durable
    bool closing = false;
    bool discarding = false;
    bool writing = false;  // the thread uses `file`, without the lock
    std::unique_ptr<MetricsLog> file;
    absl::Status trouble;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // False: nothing could be written.
  bool WriteAll(bool again) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False: the disk does not take it. Lets go of the lock while it writes.
  bool WritePending(Log& log) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static absl::Status Write(Log& log, const std::string& path, const Pending& pending);

  const Options options_;
  mutable absl::Mutex mu_;
  std::map<uint64_t, Log> logs_ ABSL_GUARDED_BY(mu_);
  bool work_ ABSL_GUARDED_BY(mu_) = false;
  bool working_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace muster
