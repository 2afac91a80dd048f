// Implements muster bench sync: measures the data plane without computation.
#pragma once

#include "cli/commands/session.h"
#include "cli/framework/command.h"

namespace muster::cli {

// Adds `sync`, and the hidden command `sync-worker`, which `sync` runs as its workers.
void AddSyncBench(Command bench, Session& session);

}  // namespace muster::cli
