// The deadlines of a job's spec: how long it may be active, and how long it waits for members.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// The job's record stores points in time and not timers, so a restart of the coordinator changes
// nothing. A clock that is set back does not give a negative time. Pure: the caller passes the
// time.
class JobDeadlines {
 public:
  static constexpr char kStartTimeout[] =
      "START_TIMEOUT";  // the reason of a job that waits too long
  // How long a job that is stopped at its deadline has to write its checkpoint.
  static constexpr absl::Duration kStopPatience = absl::Minutes(10);

  // Starts and stops the active time and the waiting time. Call it before the state of the job
  // becomes `to`.
  static void Move(v1::Job& record, v1::JobState to, absl::Time now);

  // Removes the span `time` before `now` from both times. This makes no event, so a coordinator
  // that ends before the next event forgets it.
  static void StoodStill(v1::Job& record, absl::Duration time, absl::Time now);

  // Returns how long the job has run, including recoveries.
  static absl::Duration ActiveTime(const v1::Job& record, absl::Time now);
  static bool IsPastDeadline(const v1::Job& record, absl::Time now);
  // Whether the job is past its deadline by kStopPatience.
  static bool IsLongPastDeadline(const v1::Job& record, absl::Time now);
  // Returns how long a QUEUED or RECOVERING job has waited.
  static absl::Duration WaitingTime(const v1::Job& record, absl::Time now);
  // Whether a QUEUED or RECOVERING job has waited for its start_timeout.
  static bool WaitsTooLong(const v1::Job& record, absl::Time now);

  // Return why a job is stopped that is past its deadline, or that waited too long for `lacks`,
  // which completes "waits for".
  static v1::StopCause PastDeadline(const v1::Job& record, absl::Time now);
  static v1::StopCause WaitedTooLong(const v1::Job& record, const std::string& lacks,
                                     absl::Time now);
};

}  // namespace muster
