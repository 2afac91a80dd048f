// Converts a job's optimizer into the settings of the update kernels.
#pragma once

#include "kernels/optimizer/optimizer.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Returns the settings with the defaults of v1::Optimizer filled in. Requires: `optimizer` names an
// optimizer; the process dies otherwise.
kernels::OptimizerSettings OptimizerSettingsOf(const v1::Optimizer& optimizer);

}  // namespace muster
