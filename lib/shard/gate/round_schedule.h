// The steps of a job at which rounds end: where workers average their models, or where snapshots
// are due.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "proto/muster/v1/plan.pb.h"

namespace muster {

// A round ends at every multiple of `every` and at the end of the job. The next round begins there.
// A value type.
struct RoundSchedule {
  int64_t first_step = 0;
  int64_t every = 1;  // 0: one round, until the end
  int64_t total_steps = std::numeric_limits<int64_t>::max();

  // Returns the schedule of the versions of a plan's chunks: one per step, or in local SGD one per
  // round. It lacks total_steps, which the plan does not contain. Requires: the plan is valid.
  static RoundSchedule Of(const v1::JobPlan& plan) {
    const v1::SyncSpec& sync = plan.spec().sync();
    return {.first_step = plan.first_step(),
            .every = sync.mode() == v1::LOCAL_SGD ? sync.every() : 1};
  }

  // Returns the end of the round that contains `step`. Requires: step < total_steps.
  int64_t EndAfter(int64_t step) const {
    return every > 0 ? std::min((step / every + 1) * every, total_steps) : total_steps;
  }
  // Returns whether the round of step `step - 1` ends at `step`.
  bool EndsAt(int64_t step) const {
    return step == total_steps || (every > 0 && step % every == 0);
  }
  // Returns whether a version `step` exists: at the start and where rounds end.
  bool IsVersion(int64_t step) const { return step == first_step || EndsAt(step); }
};

}  // namespace muster
