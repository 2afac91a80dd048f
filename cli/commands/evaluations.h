// Reads the evaluations of a job that its coordinator has recorded.
#pragma once

#include <string>

#include "cli/framework/coordinator_client.h"
#include "cli/text/progress_display.h"

namespace muster::cli {

// Returns a source that calls the coordinator. It returns no evaluations if the call fails.
// `client` must outlive it.
EvaluationSource EvaluationsOf(CoordinatorClient& client, const std::string& job);

}  // namespace muster::cli
