// Shortens the events of a job for people: consecutive checkpoints become one line.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster::cli {

// Shows only the last of consecutive CHECKPOINT_COMMITTED events of a job, with the number of those
// before it. Thread-compatible.
class EventFold {
 public:
  // Returns the events to show now, from `events` and from those held back before. A checkpoint is
  // held back until the job's next event of another kind. Requires: the events of each job come in
  // order.
  std::vector<v1::JobEvent> Take(absl::Span<const v1::JobEvent> events);
  // Returns the events that are still held back. Call it at the end.
  std::vector<v1::JobEvent> Rest();

 private:
  struct Run {
    v1::JobEvent last;
    int before = 0;
  };
  static v1::JobEvent Shown(Run run);

  std::map<std::string, Run> runs_;  // keyed by job
};

// Folds all of `events` and sorts the result by time.
std::vector<v1::JobEvent> Folded(absl::Span<const v1::JobEvent> events);

// Sorts in place by time. Events of the same time keep their order.
void SortByTime(std::vector<v1::JobEvent>& events);

}  // namespace muster::cli
