// How long a job waits: in the queue, and in each phase of a recovery.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Looks at a job as often as somebody changes it, and tells what has ended. A phase that is broken
// off, by another loss or by the end of the job, is not told: the recovery then begins its phases
// again, and its whole time runs on.
//
// No threads, no clock; not thread-safe.
class JobTimeline {
 public:
  enum class Span {
    kQueue,      // from QUEUED until members were chosen and have the plan
    kHalt,       // from RECOVERING until all members that are left have stopped
    kPlan,       // until there are members and a plan
    kPrepare,    // until all are ready and it runs
    kFirstStep,  // until there is a step that nobody had made before the job ran again
    kRecovery,   // the four together
  };
  struct Moment {
    v1::JobState state = v1::QUEUED;
    bool stopped = false;  // RECOVERING: its members have; never mind elsewhere
    int64_t step = 0;      // updates applied
  };
  void Look(const Moment& moment, absl::Time now,
            absl::FunctionRef<void(Span span, absl::Duration took)> ended);

 private:
  // Of the spans above what the job is in at this moment.
  std::optional<Span> SpanAt(const Moment& moment) const;

  std::optional<Span> span_;
  absl::Time since_;
  std::optional<absl::Time> recovering_since_;
  int64_t furthest_step_ = 0;  // that was seen
  int64_t step_to_pass_ = 0;   // for the recovery to be over
};

}  // namespace muster
