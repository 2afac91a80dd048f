#include "cli/data/paced_model.h"

#include <algorithm>

namespace muster::cli {

void PacedModel::Take(absl::Duration read_at) {
  const absl::Duration taken = std::max(ready_, read_at);
  waited_ += taken - ready_;
  ready_ = taken + step_;
  ++batches_;
}

double PacedModel::wait_share() const {
  return elapsed() > absl::ZeroDuration() ? absl::FDivDuration(waited_, elapsed()) : 0;
}

}  // namespace muster::cli
