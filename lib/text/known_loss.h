// Whether a job's progress has a loss that can be shown.
#pragma once

#include "proto/muster/v1/job.pb.h"

namespace muster {

// Returns false before the first loss. A program outside of Muster may never tell one.
inline bool HasLoss(const v1::JobProgress& progress) {
  return progress.loss() != 0 || progress.first_loss() != 0;
}

}  // namespace muster
