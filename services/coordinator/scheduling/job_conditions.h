// What follows from a job's record: its conditions, and why it waits.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/muster/v1/job.pb.h"
#include "services/coordinator/scheduling/scheduler.h"

namespace muster {

// Each condition's status follows from the job's state and checkpoint; since when it is so does
// not, and stands in the record. To be told after a change: `now` becomes the time of those whose
// status is another than before, or that the record does not have yet. nullopt: those have none,
// since nobody has kept it. Pure.
void UpdateConditions(std::optional<absl::Time> now, v1::Job& job);

// Sets job.waiting, and what conditions have besides, from the rest of the job: told when somebody
// asks for it, and never stored. `wait`: what the scheduler saw last of a job that is QUEUED; none:
// it has not looked yet, or the job has been given members. `stopping`: the members that a
// recovering job waits for. Pure.
void AddWhatFollows(const std::optional<Wait>& wait, v1::Job& job,
                    const std::vector<std::string>& stopping = {});

}  // namespace muster
