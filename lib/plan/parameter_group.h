// The effect of a job's parameter groups (v1::ParameterGroup) on each parameter. Coordinator,
// shards and workers must agree, so these are pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/status/field_fault.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// The optimizer's treatment of one parameter.
struct ParameterTreatment {
  double learning_rate_factor = 1;
  // Whether weight decay applies; with `decay`, whether that is positive.
  bool weight_decay = true;
  std::optional<double> decay;  // replaces the optimizer's weight decay
  // The parameter keeps its initial value, even if it is a statistic. It is fetched once, never
  // pushed, and not part of any norm.
  bool frozen = false;

  // Returns the parameter's weight decay, given that of the optimizer.
  double WeightDecay(double of_optimizer) const {
    return decay.value_or(weight_decay ? of_optimizer : 0);
  }
};

// Returns the first group with a pattern that matches the parameter's name.
std::optional<int> GroupOf(const v1::TrainingSpec& training, const v1::Parameter& parameter);

// Returns the treatment by the first group with a matching pattern. Without one, the graph decides.
ParameterTreatment TreatmentOf(const v1::TrainingSpec& training, const v1::Parameter& parameter);

// Returns faults for patterns that match no parameter ("training.parameter_groups[1].match[0]"),
// and for groups that leave nothing to train. Requires: the groups themselves are valid.
std::vector<FieldFault> ParameterGroupFaults(const v1::TrainingSpec& training,
                                             const v1::Graph& graph);

}  // namespace muster
