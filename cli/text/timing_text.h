// Formats the time that the steps of a job take, by phase, for people.
#pragma once

#include <string>

#include "proto/muster/v1/coordinator.pb.h"

namespace muster::cli {

// Returns the difference of `after` and `before` for each member. A member keeps the values of
// `after` if it is new, made no step since, or has fewer steps than before (another generation).
v1::ReadJobTimingResponse Since(const v1::ReadJobTimingResponse& before,
                                const v1::ReadJobTimingResponse& after);

// Returns a row for each worker, in milliseconds per step; a row for each worker that reads files,
// in milliseconds per sample by stage; and conclusions: the straggler, if there is one, and whether
// input, computation or communication bounds the job, with the arithmetic. If no worker has
// finished a step, it says so.
//
//   WORKER    STEPS  STEP ms  DATA ms  FORWARD ms  BACKWARD ms  WAIT ms  SENT/STEP  ...
//   worker-0  120    52.1     0.4      20.3        28.0         3.4      1.0 MiB    ...
std::string TimingText(const std::string& job, const v1::ReadJobTimingResponse& timing);

}  // namespace muster::cli
