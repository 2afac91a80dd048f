// The trust ratios of lamb and lars: each tensor moves in proportion to its own norm.
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

// Returns the trust ratio of one tensor with weights w. The squares are those of w and of its
// direction, see MeasureDirection. The direction is u in lamb, which contains the weight decay, and
// g in lars.
//
//   lamb   |w| / |u|
//   lars   trust |w| / (|g| + weight_decay |w| + epsilon)
//
// Returns 1 if either norm is 0, like the papers' own code.
double TrustRatio(const v1::Optimizer& optimizer, double weight_decay,
                  const kernels::DirectionSquares& squares);

// Computes the trust ratio of every parameter of a plan. Thread-compatible. Allocates only at
// construction.
class TrustRatios {
 public:
  explicit TrustRatios(const v1::JobPlan& plan);

  // Returns one ratio per parameter, from the squares (values, direction) of all chunks. The ratio
  // is 1 for statistics and frozen parameters. As in the reference implementations it is also 1 for
  // parameters without weight decay (biases and norms, unless a group overrides this). Valid until
  // the next call.
  absl::Span<const double> Compute(const GradientSquares& squares);

 private:
  const v1::Optimizer optimizer_;
  NumberedVector<ChunkId, int> parameter_of_chunk_;
  // Both have an entry for each parameter.
  std::vector<bool> adapts_;
  std::vector<double> weight_decays_;  // of lars
  std::vector<kernels::DirectionSquares> squares_;
  std::vector<double> ratios_;
};

}  // namespace muster
