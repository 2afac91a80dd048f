// The states of a training job, and which one may follow which.
//
//   QUEUED -> PREPARING -> RUNNING -> SUCCEEDED | FAILED | CANCELLED
//   PREPARING | RUNNING -> RECOVERING -> PREPARING
//   QUEUED | PREPARING | RUNNING | RECOVERING -> SUSPENDED -> QUEUED
#pragma once

#include "proto/muster/v1/job.pb.h"

namespace muster {

// Whether the table above has this arrow, or it is one of those to FAILED and CANCELLED: any job
// that has not ended may be cancelled, and any but one that is SUSPENDED may fail.
bool CanMove(v1::JobState from, v1::JobState to);
bool IsTerminal(v1::JobState state);
// Members are assigned to a job in this state.
bool IsActive(v1::JobState state);

}  // namespace muster
