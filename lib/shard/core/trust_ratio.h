// How far each tensor moves in a step of lamb or lars: in proportion to its own norm.
//   Sources: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes",
//   ICLR 2020, algorithm 2, with phi(x) = x; You, Gitman, Ginsburg, "Large batch training of
//   convolutional networks", 2017, section 4.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "kernels/optimizer/optimizer.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/gradient_squares.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Of one tensor whose weights w and whose direction have these squares (MeasureDirection):
//   lamb   |w| / |u|
//   lars   trust |w| / (|g| + weight_decay |w| + epsilon)
// 1 where either norm is 0, as in the papers' own code.
double TrustRatio(const v1::Optimizer& optimizer, const kernels::DirectionSquares& squares);

// Of every parameter of a plan. Thread-compatible; allocates at construction only.
class TrustRatios {
 public:
  explicit TrustRatios(const v1::JobPlan& plan);

  // From the squares (values, direction) of all chunks: one per parameter. 1 for statistics, for
  // frozen parameters and, as in the reference implementations, for those without weight decay
  // (biases and norms, unless a group says otherwise). Valid until the next call.
  absl::Span<const double> Compute(const GradientSquares& squares);

 private:
  const v1::Optimizer optimizer_;
  NumberedVector<ChunkId, int> parameter_of_chunk_;
  std::vector<bool> adapts_;  // by parameter
  std::vector<kernels::DirectionSquares> squares_;
  std::vector<double> ratios_;
};

}  // namespace muster
