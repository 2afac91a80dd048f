// Groups of states of a training job. transitions.h has the state machine.
#pragma once

#include "proto/muster/v1/job.pb.h"

namespace muster {

// Whether a job in this state has members.
inline bool IsActive(v1::JobState state) {
  return state == v1::PREPARING || state == v1::RUNNING || state == v1::RECOVERING;
}

inline bool IsTerminal(v1::JobState state) {
  return state == v1::SUCCEEDED || state == v1::FAILED || state == v1::CANCELLED;
}

}  // namespace muster
