// What follows from a job's record, told when somebody asks for the job and never stored: why it
// waits, and its conditions.
#pragma once

#include <optional>

#include "proto/muster/v1/job.pb.h"
#include "services/coordinator/scheduler.h"

namespace muster {

// Sets job.waiting and job.conditions from the rest of it. `wait`: what the scheduler saw last of a
// job that is QUEUED; none: it has not looked yet, or the job has been given members. Pure.
void AddWhatFollows(const std::optional<Wait>& wait, v1::Job& job);

}  // namespace muster
