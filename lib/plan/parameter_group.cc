#include "lib/plan/parameter_group.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "lib/graph/glob.h"

namespace muster {
namespace {

constexpr int kNamesShown = 20;

std::string NamesOf(const v1::Graph& graph) {
  const int shown = std::min(kNamesShown, graph.parameters_size());
  const int more = graph.parameters_size() - shown;
  return absl::StrCat(
      absl::StrJoin(
          graph.parameters().begin(), graph.parameters().begin() + shown, ", ",
          [](std::string* out, const v1::Parameter& parameter) { out->append(parameter.name()); }),
      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

bool MatchesAny(const v1::Graph& graph, const std::string& pattern) {
  return std::any_of(
      graph.parameters().begin(), graph.parameters().end(),
      [&](const v1::Parameter& parameter) { return MatchesGlob(pattern, parameter.name()); });
}

}  // namespace

std::optional<int> GroupOf(const v1::TrainingSpec& training, const v1::Parameter& parameter) {
  for (int g = 0; g < training.parameter_groups_size(); ++g) {
    for (const std::string& pattern : training.parameter_groups(g).match()) {
      if (MatchesGlob(pattern, parameter.name())) return g;
    }
  }
  return std::nullopt;
}

ParameterTreatment TreatmentOf(const v1::TrainingSpec& training, const v1::Parameter& parameter) {
  ParameterTreatment treatment{.weight_decay = parameter.weight_decay()};
  const std::optional<int> index = GroupOf(training, parameter);
  if (!index) return treatment;
  const v1::ParameterGroup& group = training.parameter_groups(*index);
  if (group.has_learning_rate_factor()) {
    treatment.learning_rate_factor = group.learning_rate_factor();
  }
  if (group.has_weight_decay()) treatment.weight_decay = group.weight_decay();
  if (group.has_decay()) {
    treatment.decay = group.decay();
    treatment.weight_decay = group.decay() > 0;
  }
  treatment.frozen = group.frozen();
  return treatment;
}

std::vector<FieldFault> ParameterGroupFaults(const v1::TrainingSpec& training,
                                             const v1::Graph& graph) {
  std::vector<FieldFault> faults;
  for (int g = 0; g < training.parameter_groups_size(); ++g) {
    const v1::ParameterGroup& group = training.parameter_groups(g);
    for (int m = 0; m < group.match_size(); ++m) {
      if (MatchesAny(graph, group.match(m))) continue;
      faults.push_back({absl::StrCat("training.parameter_groups[", g, "].match[", m, "]"),
                        absl::StrCat("no parameter matches '", group.match(m),
                                     "'; the model has: ", NamesOf(graph))});
    }
  }
  const bool trains = std::any_of(
      graph.parameters().begin(), graph.parameters().end(), [&](const v1::Parameter& parameter) {
        return !parameter.has_statistic_momentum() && !TreatmentOf(training, parameter).frozen;
      });
  if (!trains && training.parameter_groups_size() > 0) {
    faults.push_back({"training.parameter_groups",
                      "every parameter is frozen, nothing is left to train: narrow the patterns"});
  }
  return faults;
}

}  // namespace muster
