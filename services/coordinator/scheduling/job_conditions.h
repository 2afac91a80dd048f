// Derives a job's conditions, and the reason that it waits, from its record.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/muster/v1/job.pb.h"
#include "services/coordinator/common/job_phase.h"
#include "services/coordinator/scheduling/queue_placement.h"

namespace muster {

// Sets the type and status of every condition from the job's state and checkpoint. Call it after
// each change of `job`. The transition times cannot be derived, so the record stores them. `now`
// becomes the transition time of each condition that is new or whose status changed. With nullopt
// these conditions lose their transition times, because the true ones are unknown. Pure.
void UpdateConditions(std::optional<absl::Time> now, v1::Job& job);

// Sets job.waiting, and the reasons and messages of the conditions, from the rest of `job`. The
// results go into replies and are never stored. Pure.
//   phase     of the job
//   wait      the scheduler's last result for a QUEUED job; nullopt if the scheduler has not looked
//             at the job yet, or has given it members
//   stopping  the members that a RECOVERING job waits for
void AddWhatFollows(JobPhase phase, const std::optional<Wait>& wait, v1::Job& job,
                    const std::vector<std::string>& stopping = {});

}  // namespace muster
