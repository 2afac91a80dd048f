#include "services/coordinator/checkpoint_retention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace muster {

std::vector<int64_t> RetainedSteps(const v1::CheckpointSpec& spec,
                                   absl::Span<const int64_t> committed,
                                   absl::FunctionRef<StepEvaluation(int64_t step)> evaluation) {
  std::set<int64_t> retained;
  const int64_t every = spec.keep_every_steps();
  std::vector<std::pair<double, int64_t>> losses;
  for (const int64_t step : committed) {
    if (every > 0 && step % every == 0) retained.insert(step);
    if (spec.keep_best() == 0) continue;
    const StepEvaluation of_step = evaluation(step);
    if (of_step.kind == StepEvaluation::kToCome) retained.insert(step);
    if (of_step.kind != StepEvaluation::kKnown) continue;
    losses.emplace_back(
        std::isfinite(of_step.loss) ? of_step.loss : std::numeric_limits<double>::infinity(), step);
  }
  std::ranges::sort(losses);
  losses.resize(std::min<size_t>(losses.size(), spec.keep_best()));
  for (const auto& [loss, step] : losses) retained.insert(step);
  return {retained.begin(), retained.end()};
}

}  // namespace muster
