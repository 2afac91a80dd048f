// metrics.jsonl: every step and evaluation of a job, one JSON object per line, each once.
//   {"step":0,"loss":4.1,"gradient_norm":1.2,"learning_rate":0.003,"samples_per_second":812.5,
//    "time":1764130836.125}
//   {"step":1,...,"loss_scale":65536,"skipped":true}     of jobs that have one; of steps that were
//   {"step":400,"evaluation_loss":1.9,"evaluation_accuracy":0.5,"time":1764130900.5}
// `time` is when it had ended, in seconds since 1970, where a worker has told.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/coordinator/records/progress_ledger.h"

namespace muster {

// What a log that exists already tells: where a restarted coordinator goes on.
struct MetricsHistory {
  std::vector<StepSummary> edges;  // the first step and the last; empty: none
  std::vector<EvaluationSummary> evaluation_edges;
};

// Not thread-safe. Doubles have 17 significant digits (they read back to the bit); a value that is
// not finite is null. Errors have reason METRICS_LOG_FAILED.
class MetricsLog {
 public:
  // Where evaluations may stand: of a job that evaluates only when it ends, or where nobody asks
  // for the history, a log of millions of steps need not be searched for one.
  enum class Evaluations { kAnywhere, kAtTheEnd };

  // Opens or makes the file; cuts off lines at its end that a crash left unfinished. Reads from the
  // ends until it knows the history: a log of millions of steps is not parsed. What it tells is
  // safe from a power cut, as is the file.
  static absl::StatusOr<std::unique_ptr<MetricsLog>> Open(
      const std::string& path, Evaluations evaluations = Evaluations::kAnywhere);
  ~MetricsLog();

  const MetricsHistory& history() const { return history_; }

  // All of it, safe from a power cut; or, after an error, nothing.
  absl::Status Append(absl::Span<const StepSummary> steps,
                      absl::Span<const EvaluationSummary> evaluations);

 private:
  MetricsLog(std::string path, int file) : path_(std::move(path)), file_(file) {}

  absl::Status ReadHistory(Evaluations evaluations);

  const std::string path_;
  const int file_;
  int64_t size_ = 0;        // of whole lines
  bool leftovers_ = false;  // behind them, which could not be taken back
  MetricsHistory history_;
};

}  // namespace muster
