// Implements muster bench data: reads a job's samples as its workers would, without training.
#pragma once

#include "cli/commands/session.h"
#include "cli/framework/command.h"

namespace muster::cli {

// Adds `data` to `bench`.
void AddDataBench(Command bench, Session& session);

}  // namespace muster::cli
