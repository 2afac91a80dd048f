// How many workers a job can use. With logical workers (resources.workers.logical) a step takes as
// long as the worker with the most of them, so only some numbers make a step shorter.
#pragma once

#include "proto/muster/v1/job.pb.h"

namespace muster {

// Returns the largest useful number of workers (UsefulWorkersOf) up to `workers`, but at least
// `least`. Returns `workers` if it is at most `least`, or if the job has no logical workers (0).
// Pure.
int UsefulAtMost(int workers, int least, int logical);

// Returns the most workers that the job uses: its `max`, limited by its batch, rounded down to a
// useful number, but at least `min`. Pure.
int MostWorkers(const v1::JobSpec& spec);

}  // namespace muster
