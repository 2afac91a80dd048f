// Whether a job's graph leaves room in the message that brings a plan to its members.
#pragma once

#include <optional>

#include "lib/status/field_fault.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// A fault of "model" where `graph` is too large: a plan with it would reach nobody.
std::optional<FieldFault> GraphSizeFault(const v1::ModelSpec& model, const v1::Graph& graph);

}  // namespace muster
