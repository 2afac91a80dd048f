// Formats the response of TraceJob for ui.perfetto.dev and for people.
#pragma once

#include <string>
#include <vector>

#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cli {

// Returns the trace in the "Trace Event Format" (Google, 2016). It has a process for the
// coordinator, with the job's `events` during the trace, and one for every member with its tracks.
// A worker also has a counter of steps. "otherData" has the uncertainty of the clocks and the
// missing members.
std::string TraceJson(const std::string& job, const v1::TraceJobResponse& trace,
                      const std::vector<v1::JobEvent>& events);

// Returns a summary: steps, members, events and the uncertainty of the clocks, then a line for each
// member whose trace is incomplete.
std::string TraceText(const v1::TraceJobResponse& trace);

}  // namespace muster::cli
