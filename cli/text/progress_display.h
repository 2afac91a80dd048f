// A job's progress on stderr while a command waits for it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "cli/text/output.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster::cli {

// On a terminal one line that is redrawn, and what stands above it; elsewhere a line at every
// change of state and every 5 s. Evaluations get lines of their own.
class ProgressDisplay {
 public:
  explicit ProgressDisplay(Terminal terminal) : terminal_(terminal) {}
  ~ProgressDisplay() { Clear(); }

  void Update(const v1::Job& job, absl::Time now);
  // Lines that are drawn above the one of progress from then on, on a terminal only: a curve.
  void SetAbove(std::string lines) { above_ = std::move(lines); }
  // A line that stays.
  void Say(const std::string& line);
  // Takes the redrawn line away, so that others may write.
  void Clear();

 private:
  const Terminal terminal_;
  std::string above_;
  int lines_drawn_ = 0;  // what Clear() takes away
  absl::Time last_line_ = absl::InfinitePast();
  v1::JobState last_state_ = v1::JOB_STATE_UNSPECIFIED;
  int64_t last_evaluation_step_ = 0;
};

}  // namespace muster::cli
