// muster bench sync: the data plane without computation.
#pragma once

#include "CLI/CLI.hpp"
#include "cli/session.h"

namespace muster::cli {

// Adds `sync`, and the hidden `sync-worker` which is what `sync` starts of itself.
void AddSyncBench(CLI::App& bench, Session& session);

}  // namespace muster::cli
