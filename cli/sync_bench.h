// muster bench sync: the data plane without computation.
#pragma once

#include "cli/command.h"
#include "cli/session.h"

namespace muster::cli {

// Adds `sync`, and the hidden `sync-worker` which is what `sync` starts of itself.
void AddSyncBench(Command bench, Session& session);

}  // namespace muster::cli
