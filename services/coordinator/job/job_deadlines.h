// The times that a job file sets: how long the job may be active, and how long it waits for
// members.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// What has passed stands in the job's record, as times and not as timers, so that it is the same
// after a restart of the coordinator. A clock that was set back takes nothing back. Pure; time
// comes in.
class JobDeadlines {
 public:
  // The reasons of jobs that come to their deadlines.
  static constexpr char kActiveDeadline[] = "ACTIVE_DEADLINE";
  static constexpr char kStartTimeout[] = "START_TIMEOUT";
  // A job that is stopped at its deadline has this long to get its checkpoint written.
  static constexpr absl::Duration kStopPatience = absl::Minutes(10);

  // To be told before the job becomes `to`: which times pass from then on.
  static void Move(v1::Job& record, v1::JobState to, absl::Time now);

  // Time stood still for so long until `now`. It is not an event of the job: a coordinator that
  // ends before the next one forgets it.
  static void StoodStill(v1::Job& record, absl::Duration time, absl::Time now);

  // For how long the job has run, recoveries included.
  static absl::Duration ActiveTime(const v1::Job& record, absl::Time now);
  static bool IsPastDeadline(const v1::Job& record, absl::Time now);
  // And has been for kStopPatience.
  static bool IsLongPastDeadline(const v1::Job& record, absl::Time now);
  // For how long a job that is QUEUED or RECOVERING has waited.
  static absl::Duration WaitingTime(const v1::Job& record, absl::Time now);
  // One that is QUEUED or RECOVERING has waited for as long as it was to.
  static bool WaitsTooLong(const v1::Job& record, absl::Time now);

  // Why a job is stopped that is past its deadline; or that waits too long for what it `lacks` (a
  // sentence's end).
  static v1::StopCause PastDeadline(const v1::Job& record, absl::Time now);
  static v1::StopCause WaitedTooLong(const v1::Job& record, const std::string& lacks,
                                     absl::Time now);
};

}  // namespace muster
