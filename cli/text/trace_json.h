// What TraceJob answers, for ui.perfetto.dev.
#pragma once

#include <string>
#include <vector>

#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cli {

// In the "Trace Event Format" (Google, 2016): a process for the coordinator, with those of the
// job's `events` that fall into the trace, and one for every member, with its tracks and, of a
// worker, a counter of steps. How certain the clocks are, and who is missing, is in "otherData".
std::string TraceJson(const std::string& job, const v1::TraceJobResponse& trace,
                      const std::vector<v1::JobEvent>& events);

// What a person is told of it: steps, members, events, how certain the clocks are. A line for each
// member that has not told all.
std::string TraceText(const v1::TraceJobResponse& trace);

}  // namespace muster::cli
