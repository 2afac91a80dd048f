// A job's progress on stderr while a command waits for it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "cli/output.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster::cli {

// On a terminal one line that is redrawn; elsewhere a line at every change of state and every 5 s.
// Evaluations get lines of their own.
class ProgressDisplay {
 public:
  explicit ProgressDisplay(Terminal terminal) : terminal_(terminal) {}
  ~ProgressDisplay() { Clear(); }

  void Update(const v1::Job& job, absl::Time now);
  // A line that stays.
  void Say(const std::string& line);
  // Takes the redrawn line away, so that others may write.
  void Clear();

 private:
  const Terminal terminal_;
  bool drawn_ = false;
  absl::Time last_line_ = absl::InfinitePast();
  v1::JobState last_state_ = v1::JOB_STATE_UNSPECIFIED;
  int64_t last_evaluation_step_ = 0;
};

}  // namespace muster::cli
