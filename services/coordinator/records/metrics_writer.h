// Writes steps and evaluations to the metrics.jsonl files of jobs.
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
#include "services/coordinator/records/step_aggregator.h"

namespace muster {

// One thread appends the records of all jobs and syncs them. Only then it reports them as durable,
// so that workers do not drop records that a power cut could take. Callers never wait for the disk.
// A write that fails (the disk is full) is repeated every second. Workers limit the waiting
// records: each job has at most limits::kStepRecordsHeldMax. Thread-safe.
class MetricsWriter {
 public:
  struct Options {
    // Called on the writer's thread, without any lock.
    std::function<void(uint64_t job, const RecordsBefore& durable)> durable;
    absl::Duration retry = absl::Seconds(1);
  };
  explicit MetricsWriter(Options options);
  // Writes the waiting records, except those that the disk does not accept.
  ~MetricsWriter();

  // Adds records of a job with the log at `path`; there may be none. `up_to` is reported when all
  // records given so far for the job are durable.
  void Append(uint64_t job, const std::string& path, std::vector<StepSummary> steps,
              std::vector<EvaluationSummary> evaluations, const RecordsBefore& up_to)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Declares that no more records of the job will come. Closes its file after the waiting records
  // are written. Does not report these records as durable.
  void Close(uint64_t job) ABSL_LOCKS_EXCLUDED(mu_);
  // Like Close(), but drops waiting records, because the job's folder will be removed. Returns when
  // the file is closed.
  void Discard(uint64_t job) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns why the job's records are not on the disk, or OK if they are or will be soon.
  absl::Status Trouble(uint64_t job) const ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until all records are durable and reported, except those that the disk does not accept.
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
    RecordsBefore up_to;  // belongs to `pending`
    bool told = true;     // all before `up_to` were reported as durable
    bool closing = false;
    bool discarding = false;
    bool writing = false;  // the thread uses `file` without the lock
    std::unique_ptr<MetricsLog> file;
    absl::Status trouble;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns false if some records could not be written.
  bool WriteAll(bool again) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns false if the disk does not accept the records. Releases the lock while it writes.
  bool WritePending(Log& log) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static absl::Status Write(Log& log, const std::string& path, const Pending& pending);

  const Options options_;
  mutable absl::Mutex mu_;
  std::map<uint64_t, Log> logs_ ABSL_GUARDED_BY(mu_);
  bool work_ ABSL_GUARDED_BY(mu_) = false;
  bool working_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last, because it uses the other members
};

}  // namespace muster
