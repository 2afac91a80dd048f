// Checks that a job's graph leaves room in the message that carries a plan to its members.
#pragma once

#include <optional>

#include "lib/status/field_fault.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Returns a fault of "model" if `graph` is too large. No member could receive a plan with it.
std::optional<FieldFault> GraphSizeFault(const v1::ModelSpec& model, const v1::Graph& graph);

}  // namespace muster
