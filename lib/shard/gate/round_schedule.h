// Which steps of a job are ends of rounds: where workers average, where snapshots are due.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "proto/muster/v1/plan.pb.h"

namespace muster {

// A round ends at every multiple of `every`, and with the job; the next one begins there. A value.
struct RoundSchedule {
  int64_t first_step = 0;
  int64_t every = 1;  // 0: one round, until the end
  int64_t total_steps = std::numeric_limits<int64_t>::max();

  // What versions a plan's chunks have: of every step but in local SGD, where what is pushed is the
  // work of a round. The plan is good; it does not say where the job ends.
  static RoundSchedule Of(const v1::JobPlan& plan) {
    const v1::SyncSpec& sync = plan.spec().sync();
    return {.first_step = plan.first_step(),
            .every = sync.mode() == v1::LOCAL_SGD ? sync.every() : 1};
  }

  // Where the round ends that `step` is in. Not of the last step or later.
  int64_t EndAfter(int64_t step) const {
    return every > 0 ? std::min((step / every + 1) * every, total_steps) : total_steps;
  }
  // Whether a round ends at `step`: the one of the step before it.
  bool EndsAt(int64_t step) const {
    return step == total_steps || (every > 0 && step % every == 0);
  }
  // Whether there are values of `step`: at the start and where rounds end.
  bool IsVersion(int64_t step) const { return step == first_step || EndsAt(step); }
};

}  // namespace muster
