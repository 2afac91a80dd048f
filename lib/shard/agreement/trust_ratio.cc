#include "lib/shard/agreement/trust_ratio.h"

#include <algorithm>
#include <cmath>

#include "lib/plan/parameter_group.h"

namespace muster {

double TrustRatio(const v1::Optimizer& optimizer, double weight_decay,
                  const kernels::DirectionSquares& squares) {
  const double weights = std::sqrt(squares.values), direction = std::sqrt(squares.direction);
  if (weights == 0 || direction == 0) return 1;
  if (!optimizer.has_lars()) return weights / direction;
  const v1::Lars& lars = optimizer.lars();
  const double trust = lars.has_trust() ? lars.trust() : 0.001;
  const double epsilon = lars.has_epsilon() ? lars.epsilon() : 1e-8;
  return trust * weights / (direction + weight_decay * weights + epsilon);
}

TrustRatios::TrustRatios(const v1::JobPlan& plan)
    : optimizer_(plan.spec().training().optimizer()),
      squares_(plan.graph().parameters_size()),
      ratios_(plan.graph().parameters_size()) {
  for (const v1::PlanChunk& chunk : plan.chunks()) {
    parameter_of_chunk_.emplace_back(chunk.parameter());
  }
  for (const v1::Parameter& parameter : plan.graph().parameters()) {
    const ParameterTreatment treatment = TreatmentOf(plan.spec().training(), parameter);
    adapts_.push_back(!parameter.has_statistic_momentum() && treatment.weight_decay);
    weight_decays_.push_back(treatment.WeightDecay(optimizer_.lars().weight_decay()));
  }
}

absl::Span<const double> TrustRatios::Compute(const GradientSquares& squares) {
  std::fill(squares_.begin(), squares_.end(), kernels::DirectionSquares{});
  for (const ChunkId chunk : parameter_of_chunk_.numbers()) {
    kernels::DirectionSquares& sum = squares_[parameter_of_chunk_[chunk]];
    sum.values += squares.Sum(chunk, 0);
    sum.direction += squares.Sum(chunk, 1);
  }
  for (size_t p = 0; p < ratios_.size(); ++p) {
    ratios_[p] = adapts_[p] ? TrustRatio(optimizer_, weight_decays_[p], squares_[p]) : 1;
  }
  return ratios_;
}

}  // namespace muster
