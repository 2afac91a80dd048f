// Measures how long a job waits: in the queue, and in each phase of a recovery.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Observe a job at every change with Look(), which reports the phases that ended. A phase that
// another loss or the end of the job interrupts is not reported. The recovery then starts its
// phases again, and its total time continues.
//
// Uses no threads and no clock. Not thread-safe.
class JobTimeline {
 public:
  enum class Span {
    kQueue,      // from QUEUED until the job has members and a plan
    kHalt,       // from RECOVERING until the job can resume: see Moment::stopped
    kPlan,       // until there are members and a plan
    kPrepare,    // until all members are ready and the job runs
    kFirstStep,  // until a step that no generation had made before
    kRecovery,   // all four phases together
  };
  struct Moment {
    v1::JobState state = v1::QUEUED;
    // In RECOVERING: the job has a resume point (Job::ResumesAt()). Its members have stopped and
    // its back-off is over. Ignored in other states.
    bool stopped = false;
    int64_t step = 0;  // updates applied
  };
  void Look(const Moment& moment, absl::Time now,
            absl::FunctionRef<void(Span span, absl::Duration took)> ended);

 private:
  // Returns the span that the job is in.
  std::optional<Span> SpanAt(const Moment& moment) const;

  std::optional<Span> span_;
  absl::Time since_;
  std::optional<absl::Time> recovering_since_;
  int64_t furthest_step_ = 0;  // the largest step seen
  int64_t step_to_pass_ = 0;   // the recovery ends when the job passes it
};

}  // namespace muster
