// One optimizer update of a run of elements, fused with the sum of the ranks' gradients: every byte
// is read once.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cpu/simd_level.h"

namespace muster::kernels {

// With g the gradient, p the value, lr the learning rate, wd the weight decay, t = step + 1. As
// PyTorch 2 defines them (torch.optim reference, "algorithm" boxes), which differ from the papers
// where noted:
//
//   kSgd          g += wd p;  p -= lr g
//   kSgdMomentum  g += wd p;  b = momentum b + g;  p -= lr b                    no dampening; lr
//   outside of b kSgdNesterov  g += wd p;  b = momentum b + g;  p -= lr (g + momentum b)
//       Sutskever, Martens, Dahl, Hinton, "On the importance of initialization and momentum", ICML
//       2013
//   kAdam         g += wd p;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//                 p -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//       Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015, algorithm 1
//   kAdamw        p *= 1 - lr wd;  then as kAdam without g += wd p
//       Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019, algorithm 2
//   kAdagrad      g += wd p;  s += g^2;  p -= lr g / (sqrt(s) + epsilon)
//       Duchi, Hazan, Singer, "Adaptive subgradient methods", JMLR 12, 2011
//   kRmsprop      g += wd p;  s = alpha s + (1 - alpha) g^2;  p -= lr g / (sqrt(s) + epsilon)
//       Tieleman, Hinton, Coursera "Neural networks for machine learning", lecture 6.5, 2012
enum class OptimizerRule {
  kSgd,
  kSgdMomentum,
  kSgdNesterov,
  kAdam,
  kAdamw,
  kAdagrad,
  kRmsprop,
};

inline constexpr int kOptimizerSlotsMax = 2;

// How many values the rule keeps beside each parameter; all start at 0.
int OptimizerSlots(OptimizerRule rule);

struct OptimizerSettings {
  OptimizerRule rule = OptimizerRule::kSgd;
  double momentum = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double alpha = 0.99;
  double epsilon = 1e-8;
  double weight_decay = 0;
};

// All f32[n]. No output may overlap anything else.
struct OptimizerBuffers {
  const float* const* gradients;  // [ranks], one per rank
  int ranks;                      // >= 1
  const float* values_in;
  float* values_out;
  const float*
      slots_in[kOptimizerSlotsMax];  // in the order of the formulas; null where the rule has none
  float* slots_out[kOptimizerSlotsMax];
};

// What happens to the summed gradient before the rule sees it: g = min(max(factor * sum, -limit),
// limit). The defaults change nothing and cost nothing.
struct GradientClip {
  double factor = 1;  // clipping by global norm: clip / norm; rounded to float
  double limit = std::numeric_limits<double>::infinity();  // clipping by value; rounded to float
};

// Applies update number `step` (counted from 0) to n elements: sum = gradients[0] + gradients[1] +
// ... in rank order, g from it by `clip`, then the rule. Returns the sum of squares of the sum,
// before `clip`; it is not finite where an element of the sum is not.
//
// Coefficients are computed in double and rounded once; elements are computed in float, one
// operation of the formula after the other, each correctly rounded. So an element's result depends
// on that element alone: neither on how a parameter is cut into runs nor on the instruction set.
// The sum of squares adds element i of the run to lane i mod 16 of 16 doubles, then the lanes
// pairwise: it depends on where the run begins, not on the instruction set.
//
// Reads (ranks + 1 + slots) n floats and writes (1 + slots) n: bandwidth-bound.
double ApplyOptimizer(const OptimizerSettings& settings, double learning_rate, int64_t step,
                      const OptimizerBuffers& buffers, int64_t n, const GradientClip& clip = {},
                      SimdLevel level = DetectSimdLevel());

// out = gradients[0] + gradients[1] + ... in rank order, and its sum of squares: the bits that
// ApplyOptimizer() computes on its way. What a clip by global norm needs before any update: after
// it, ApplyOptimizer() with out as the only rank. out may be any of the gradients.
double SumGradients(float* out, const float* const* gradients, int ranks, int64_t n,
                    SimdLevel level = DetectSimdLevel());

// Moves a statistic (a running mean) towards the sum of the ranks' contributions:
//   value_out = value_in + momentum (contributions[0] + contributions[1] + ... - value_in)
// in float, each operation correctly rounded. Returns the sum of squares of the contributions' sum,
// so that one which is not finite is seen. value_out overlaps nothing but may be value_in.
double ApplyStatistic(float* value_out, const float* value_in, const float* const* contributions,
                      int ranks, double momentum, int64_t n, SimdLevel level = DetectSimdLevel());

}  // namespace muster::kernels
