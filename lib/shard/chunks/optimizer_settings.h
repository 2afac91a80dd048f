// What the kernels need of a job's optimizer.
#pragma once

#include "kernels/optimizer/optimizer.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// With the defaults of v1::Optimizer filled in. CHECKs that there is one.
kernels::OptimizerSettings OptimizerSettingsOf(const v1::Optimizer& optimizer);

}  // namespace muster
