// Formats the time that the steps of a job take, by phase, for people.
#pragma once

#include <string>

#include "proto/muster/v1/coordinator.pb.h"

namespace muster::cli {

// Returns the difference of `after` and `before` for each member. A member keeps the values of
// `after` if it is new, made no step since, or has fewer steps than before (another generation).
v1::ReadJobTimingResponse Since(const v1::ReadJobTimingResponse& before,
                                const v1::ReadJobTimingResponse& after);

// Returns a table of the steps and conclusions. Each worker has a row, in milliseconds per step. A
// worker that reads files has another one, in milliseconds per sample and stage. The conclusions
// name the straggler, if there is one. They say with the arithmetic whether input, computation or
// communication bounds the job. Jobs with tensor parallelism have a column RANKS ms: the part of
// the computing time in collectives of the ranks. If no worker has finished a step, the text says
// so.
//
//   WORKER    STEPS  STEP ms  DATA ms  FORWARD ms  BACKWARD ms  WAIT ms  SENT/STEP  ...
//   worker-0  120    52.1     0.4      20.3        28.0         3.4      1.0 MiB    ...
std::string TimingText(const std::string& job, const v1::ReadJobTimingResponse& timing);

}  // namespace muster::cli
