// muster bench sync: the data plane without computation.
#pragma once

#include "cli/commands/session.h"
#include "cli/framework/command.h"

namespace muster::cli {

// Adds `sync`, and the hidden `sync-worker` which is what `sync` starts of itself.
void AddSyncBench(Command bench, Session& session);

}  // namespace muster::cli
