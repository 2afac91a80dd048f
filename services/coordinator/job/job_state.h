// Groups of states of a training job. transitions.h has the state machine.
#pragma once

#include "proto/muster/v1/job.pb.h"

namespace muster {

bool IsTerminal(v1::JobState state);
// Whether a job in this state has members.
bool IsActive(v1::JobState state);

}  // namespace muster
