// Folds the events of a job for people: one line for checkpoints that follow one another.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster::cli {

// Of CHECKPOINT_COMMITTED events of a job that follow one another only the last is shown, with the
// number of those before. Thread-compatible.
class EventFold {
 public:
  // The events to show now, of `events` and of those held back before; events of a job come in
  // order. A checkpoint's is held back until the job's next event of another kind.
  std::vector<v1::JobEvent> Take(absl::Span<const v1::JobEvent> events);
  // The events that are held back: nothing follows.
  std::vector<v1::JobEvent> Rest();

 private:
  struct Run {
    v1::JobEvent last;
    int before = 0;
  };
  static v1::JobEvent Shown(Run run);

  std::map<std::string, Run> runs_;  // by job
};

// All of them, folded, in the order of their times.
std::vector<v1::JobEvent> Folded(absl::Span<const v1::JobEvent> events);

// Sorts in place by time; events of one time stay in their order.
void SortByTime(std::vector<v1::JobEvent>& events);

}  // namespace muster::cli
