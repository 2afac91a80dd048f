// The states of a training job, and the transitions between them.
//
//   QUEUED -> PREPARING -> RUNNING -> SUCCEEDED | FAILED | CANCELLED
//   PREPARING | RUNNING -> RECOVERING -> PREPARING
//   QUEUED | PREPARING | RUNNING | RECOVERING -> SUSPENDED -> QUEUED
#pragma once

#include "proto/muster/v1/job.pb.h"

namespace muster {

// Whether the table above allows the transition. Beyond the table, any job that has not ended may
// be cancelled, and may fail unless it is SUSPENDED.
bool CanMove(v1::JobState from, v1::JobState to);
bool IsTerminal(v1::JobState state);
// Whether a job in this state has members.
bool IsActive(v1::JobState state);

}  // namespace muster
