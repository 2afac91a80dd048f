// Shows a job's progress on stderr while a command waits for the job.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "cli/text/output.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster::cli {

struct Evaluation {
  int64_t step = 0;
  double loss = 0;
  std::optional<double> accuracy;  // [0, 1]
};
// Returns the recorded evaluations of the job from a step on, in order. Blocks for one call to the
// coordinator.
using EvaluationSource = std::function<std::vector<Evaluation>(int64_t first_step)>;

// Draws the progress. On a terminal it redraws one line and the lines above it. Otherwise it prints
// a line at every change of state and every 5 s. Evaluations get their own lines.
// Thread-compatible.
class ProgressDisplay {
 public:
  // `evaluations` returns all evaluations. Updates come only once a second, so they skip some.
  ProgressDisplay(Terminal terminal, EvaluationSource evaluations)
      : terminal_(terminal), evaluations_(std::move(evaluations)) {}
  ~ProgressDisplay() { Clear(); }

  void Update(const v1::Job& job, absl::Time now);
  // Sets the lines to draw above the progress line from now on, for example a curve. No effect
  // without a terminal.
  void SetAbove(std::string lines) { above_ = std::move(lines); }
  // Prints a line that stays.
  void Say(const std::string& line);
  // Erases the redrawn lines, so that other output can follow.
  void Clear();

 private:
  void SayEvaluations(const v1::JobProgress& progress);

  const Terminal terminal_;
  const EvaluationSource evaluations_;
  std::string above_;
  int lines_drawn_ = 0;  // lines that Clear() erases
  absl::Time last_line_ = absl::InfinitePast();
  v1::JobState last_state_ = v1::JOB_STATE_UNSPECIFIED;
  int64_t evaluations_before_ = 0;  // all evaluations before this step are printed
};

}  // namespace muster::cli
