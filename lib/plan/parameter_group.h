// What a job's parameter groups (v1::ParameterGroup) make of each parameter. Coordinator, shards
// and workers must agree, so it is all pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/status/field_fault.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// How the optimizer treats one parameter.
struct ParameterTreatment {
  double learning_rate_factor = 1;
  bool weight_decay = true;
  // Keeps the value it has at the start, also where it is a statistic: fetched once, never pushed,
  // of no part in norms.
  bool frozen = false;
};

// The first group of which a pattern matches the parameter's name.
std::optional<int> GroupOf(const v1::TrainingSpec& training, const v1::Parameter& parameter);

// By the first group of which a pattern matches the parameter's name; without one, as the graph has
// it.
ParameterTreatment TreatmentOf(const v1::TrainingSpec& training, const v1::Parameter& parameter);

// Patterns without a parameter ("training.parameter_groups[1].match[0]"), and groups that leave
// nothing to train. The groups themselves are good.
std::vector<FieldFault> ParameterGroupFaults(const v1::TrainingSpec& training,
                                             const v1::Graph& graph);

}  // namespace muster
