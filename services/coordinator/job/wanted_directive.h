// What a job wants of each of its members.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/coordinator/job/checkpoint_policy.h"
#include "services/coordinator/job/recovery/interruption.h"
#include "services/coordinator/job/recovery/job_members.h"

namespace muster {

// Where workers are not at the same step they cannot all stop at one: the shards take a cut through
// the job while it runs, and what was computed beyond is done again after the suspension.
bool SuspendsAtSnapshot(const v1::JobPlan& plan);

// An active job, as far as it decides what is wanted of its members. What is referred to is not
// kept.
struct WantingJob {
  v1::JobState state = v1::PREPARING;
  bool suspend_requested = false;
  int64_t total_steps = 0;  // known once it runs
  const v1::JobPlan& plan;
  const JobMembers& members;
  const CheckpointPolicy& checkpoints;
  const Interruption& interruption;
};

// Of one of its members, as that was when it last reported; nothing: it does what it should, or it
// is not time yet. A Prepare has no plan, which who sends it adds. Pure.
std::optional<v1::Directive> WantedDirective(const std::string& member, const WantingJob& job);

}  // namespace muster
