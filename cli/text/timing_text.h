// Where the time of a job's steps goes, as people read it.
#pragma once

#include <string>

#include "proto/muster/v1/coordinator.pb.h"

namespace muster::cli {

// What came to `after` since `before`, by member; all of it where that is another generation's, or
// nothing came.
v1::ReadJobTimingResponse Since(const v1::ReadJobTimingResponse& before,
                                const v1::ReadJobTimingResponse& after);

// A row for each worker, in milliseconds a step, and what that means: who holds the others up, and
// whether it is input, computing or communication that bounds the job, with the arithmetic. Says so
// where there is nothing yet.
//
//   WORKER    STEPS  STEP  DATA  FORWARD  BACKWARD  WAIT  SAMPLES/S
//   worker-0    120  52.1   0.4     20.3      28.0   3.4        307
std::string TimingText(const std::string& job, const v1::ReadJobTimingResponse& timing);

}  // namespace muster::cli
