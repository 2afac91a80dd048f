// Makes the gate of a plan's consistency mode.
#pragma once

#include <memory>

#include "lib/shard/gate/gate.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Returns whether each push is an update of its own (ssp, asp).
bool PushesAreUpdates(const v1::JobPlan& plan);

// Returns the gate of a shard with `chunks` chunks, of which `trained_chunks` have gradients. It is
// a BackupGate if the plan has backup workers. Requires: the plan is valid.
std::unique_ptr<Gate> MakeGate(const v1::JobPlan& plan, int chunks, int trained_chunks);

}  // namespace muster
