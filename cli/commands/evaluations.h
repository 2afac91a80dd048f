// The evaluations of a job, as its coordinator has recorded them.
#pragma once

#include <string>

#include "cli/framework/coordinator_client.h"
#include "cli/text/progress_display.h"

namespace muster::cli {

// A source that asks the coordinator; it returns none if the call fails. `client` outlives it.
EvaluationSource EvaluationsOf(CoordinatorClient& client, const std::string& job);

}  // namespace muster::cli
