#include "services/coordinator/checkpoints/checkpoint_retention.h"

#include <cmath>
#include <map>
#include <set>

namespace muster {

std::vector<int64_t> RetainedSteps(const v1::CheckpointSpec& spec,
                                   absl::Span<const int64_t> committed,
                                   absl::FunctionRef<StepEvaluation(int64_t step)> evaluation) {
  std::set<int64_t> retained;
  std::map<double, std::vector<int64_t>> steps_by_loss;
  for (const int64_t step : committed) {
    if (spec.keep_every_steps() > 0 && step % spec.keep_every_steps() == 0) retained.insert(step);
    if (spec.keep_best() == 0) continue;
    const StepEvaluation of_step = evaluation(step);
    if (of_step.kind == StepEvaluation::kToCome) retained.insert(step);
    if (of_step.kind == StepEvaluation::kKnown && std::isfinite(of_step.loss)) {
      steps_by_loss[of_step.loss].push_back(step);
    }
  }
  int places = spec.keep_best();
  for (const auto& [loss, steps] : steps_by_loss) {
    if (places-- == 0) break;
    retained.insert(steps.begin(), steps.end());
  }
  return {retained.begin(), retained.end()};
}

}  // namespace muster
