// metrics.jsonl: every step and evaluation of a job, each once, as one JSON object per line.
//   {"step":0,"loss":4.1,"gradient_norm":1.2,"learning_rate":0.003,"samples_per_second":812.5,
//    "time":1764130836.125}
//   {"step":1,...,"loss_scale":65536,"skipped":true}
//   {"step":400,"evaluation_loss":1.9,"evaluation_accuracy":0.5,"time":1764130900.5}
// Only fp16 jobs have `loss_scale`, and only skipped steps have `skipped`. `time` is the end of the
// step in seconds since 1970, if a worker reported it. A program outside of Muster may tell no
// loss, which is then left out, and means of its own, which are last:
//   {"step":2,"gradient_norm":1.2,...,"time":1764130837.1,"metrics":{"accuracy":0.5}}
//   {"step":400,"time":1764130900.5,"evaluation_samples":64,"evaluation_metrics":{"accuracy":0.5}}
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/coordinator/records/step_aggregator.h"

namespace muster {

// The content of an existing log, from which a restarted coordinator continues. If the first or
// last step has no loss, it has that of a step near it.
struct MetricsHistory {
  std::vector<StepSummary> edges;  // the first and the last step; empty if there are none
  std::vector<EvaluationSummary> evaluation_edges;
};

// Doubles have 17 significant digits, so they read back exactly. A non-finite value is null. Errors
// have the reason METRICS_LOG_FAILED. Not thread-safe.
class MetricsLog {
 public:
  // Tells where a log may have evaluations. kAtTheEnd avoids a search through millions of lines. It
  // is for a job that evaluates only at its end, and for callers that do not need the history.
  enum class Evaluations { kAnywhere, kAtTheEnd };

  // Opens or creates the file, and cuts off unfinished lines that a crash left. Reads from both
  // ends until the history is known, so a log of millions of steps is not parsed. The history and
  // the file are durable when this returns.
  static absl::StatusOr<std::unique_ptr<MetricsLog>> Open(
      const std::string& path, Evaluations evaluations = Evaluations::kAnywhere);
  ~MetricsLog();

  const MetricsHistory& history() const { return history_; }

  // Appends everything durably. After an error the log is unchanged.
  absl::Status Append(absl::Span<const StepSummary> steps,
                      absl::Span<const EvaluationSummary> evaluations);

 private:
  MetricsLog(std::string path, int file) : path_(std::move(path)), file_(file) {}

  absl::Status ReadHistory(Evaluations evaluations);

  const std::string path_;
  const int file_;
  int64_t size_ = 0;        // of complete lines
  bool leftovers_ = false;  // the file has invalid bytes after them that could not be truncated
  MetricsHistory history_;
};

}  // namespace muster
