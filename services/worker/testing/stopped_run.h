// Stops a trainer and continues its job, for tests.
#pragma once

#include <cstdint>
#include <functional>

#include "lib/exchange/fake_ps.h"
#include "services/worker/training/trainer.h"

namespace muster {

// Trains a job of one worker on `devices` devices of the CPU and stops it at a random moment with
// `stop`, which another thread calls. Continues on fresh ps, at the step and with the values that
// the worker left. The values must have the bits of an undisturbed run. A failure is one of the
// test.
void StopAndContinue(FakePs::Options job, int64_t total_steps, int devices, uint32_t seed,
                     const std::function<void(Trainer&, FakePs&)>& stop);

}  // namespace muster
