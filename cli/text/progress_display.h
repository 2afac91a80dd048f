// A job's progress on stderr while a command waits for it.
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
// Reads the recorded evaluations of the job from a step on, in order. Blocks for a call.
using EvaluationSource = std::function<std::vector<Evaluation>(int64_t first_step)>;

// On a terminal one line that is redrawn, and what stands above it; elsewhere a line at every
// change of state and every 5 s. Evaluations get lines of their own.
class ProgressDisplay {
 public:
  // Updates come once a second, so they leave evaluations out: `evaluations` has all of them.
  ProgressDisplay(Terminal terminal, EvaluationSource evaluations)
      : terminal_(terminal), evaluations_(std::move(evaluations)) {}
  ~ProgressDisplay() { Clear(); }

  void Update(const v1::Job& job, absl::Time now);
  // Lines that are drawn above the one of progress from then on, on a terminal only: a curve.
  void SetAbove(std::string lines) { above_ = std::move(lines); }
  // A line that stays.
  void Say(const std::string& line);
  // Takes the redrawn line away, so that others may write.
  void Clear();

 private:
  void SayEvaluations(const v1::JobProgress& progress);

  const Terminal terminal_;
  const EvaluationSource evaluations_;
  std::string above_;
  int lines_drawn_ = 0;  // what Clear() takes away
  absl::Time last_line_ = absl::InfinitePast();
  v1::JobState last_state_ = v1::JOB_STATE_UNSPECIFIED;
  int64_t evaluations_before_ = 0;  // of steps before this one all are said
};

}  // namespace muster::cli
