// Derives the directive that a job's member should have now.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/coordinator/job/checkpoint_policy.h"
#include "services/coordinator/job/recovery/job_members.h"
#include "services/coordinator/job/recovery/recovery.h"

namespace muster {

// Whether a suspension stops the job at a snapshot. Workers that are not at the same step cannot
// all pause at one. The shards take a snapshot while the job runs, and steps after it are repeated
// when the job resumes.
bool SuspendsAtSnapshot(const v1::JobPlan& plan);

// The parts of an active job that determine the directives. The references are used only during the
// call.
struct DirectiveInputs {
  v1::JobState state = v1::PREPARING;
  bool suspend_requested = false;
  int64_t total_steps = 0;  // known once it runs
  const v1::JobPlan& plan;
  const JobMembers& members;
  const CheckpointPolicy& checkpoints;
  const Recovery& recovery;
};

// Returns the directive for `member`, by its last report. nullopt if the member does what it should
// already, or if it is too early for a directive. A Prepare lacks the plan, which the sender adds.
// Pure.
std::optional<v1::Directive> DesiredDirective(const std::string& member,
                                              const DirectiveInputs& job);

}  // namespace muster
