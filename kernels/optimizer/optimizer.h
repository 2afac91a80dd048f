// One optimizer update of a run of elements, fused with the sum of the ranks' gradients: every byte
// is read once.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cpu/simd_level.h"

namespace muster::kernels {

// With g the gradient, p the value, lr the learning rate, wd the weight decay, r the trust ratio (1
// unless set), t = step + 1. As PyTorch 2 defines them (torch.optim reference, "algorithm" boxes),
// which differ from the papers where noted:
//
//   kSgd          g = r (g + wd p);  p -= lr g
//   kSgdMomentum  g = r (g + wd p);  b = momentum b + g;  p -= lr b
//                 no dampening; lr outside of b
//   kSgdNesterov  g = r (g + wd p);  b = momentum b + g;  p -= lr (g + momentum b)
//       Sutskever, Martens, Dahl, Hinton, "On the importance of initialization and momentum", ICML
//       2013; with a trust ratio the first two are LARS: You, Gitman, Ginsburg, "Large batch
//       training of convolutional networks", 2017, but for lr outside of b
//   kAdam         g += wd p;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//                 p -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//       Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015, algorithm 1
//   kAdamw        p *= 1 - lr wd;  then as kAdam without g += wd p
//       Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019, algorithm 2
//   kAdagrad      g += wd p;  s += g^2;  p -= lr g / (sqrt(s) + epsilon)
//       Duchi, Hazan, Singer, "Adaptive subgradient methods", JMLR 12, 2011
//   kRmsprop      g += wd p;  s = alpha s + (1 - alpha) g^2;  p -= lr g / (sqrt(s) + epsilon)
//       Tieleman, Hinton, Coursera "Neural networks for machine learning", lecture 6.5, 2012
//   kLamb         m, v as kAdam without g += wd p
//                 u = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + epsilon) + wd p
//                 p -= lr r u
//       You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR
//       2020, algorithm 2
enum class OptimizerRule {
  kSgd,
  kSgdMomentum,
  kSgdNesterov,
  kAdam,
  kAdamw,
  kAdagrad,
  kRmsprop,
  kLamb,
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
  double trust_ratio = 1;  // of the tensor in this update: from its DirectionSquares
};

enum class FloatType { kF32, kBf16, kF16 };

// As a rank sent it; widened where it is read.
struct Gradient {
  const void* elements = nullptr;  // [n], aligned as the type
  FloatType type = FloatType::kF32;
};

// Which outputs go past the caches to memory, where their arrays are aligned to 64 bytes. It saves
// reading what is overwritten: a quarter to a third of the traffic. For what nobody reads before a
// cache would have lost it.
enum class Streaming { kNothing, kSlots, kSlotsAndValues };

// How what goes out (wire_out, or else values_out) is stored where it is not streamed. A processor
// that writes to a line which another one has read fetches it first; kUnfetched writes blocks of
// whole lines, for which it need not. Between processors that share no cache that takes two thirds
// of the time, else up to a third more; the result is the same.
enum class OutgoingStores { kDirect, kUnfetched };

// [n] each. No output may overlap anything else.
struct OptimizerBuffers {
  const Gradient* gradients;  // [ranks], one per rank
  int ranks;                  // >= 1
  const float* values_in;
  float* values_out;
  // In the order of the formulas; null where the rule has none.
  const float* slots_in[kOptimizerSlotsMax];
  float* slots_out[kOptimizerSlotsMax];
  // values_out rounded to `wire_type` (to the nearest, ties to even), kBf16 or kF16; null: not
  // wanted.
  void* wire_out = nullptr;
  FloatType wire_type = FloatType::kF32;
  Streaming streaming = Streaming::kNothing;
  OutgoingStores outgoing_stores = OutgoingStores::kDirect;
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
// The sum of squares adds element i of the run to lane i mod 32 of 32 doubles, then the lanes
// pairwise: it depends on where the run begins, not on the instruction set.
//
// Reads every rank's n elements and (1 + slots) n floats, writes (1 + slots) n: bandwidth-bound.
double ApplyOptimizer(const OptimizerSettings& settings, double learning_rate, int64_t step,
                      const OptimizerBuffers& buffers, int64_t n, const GradientClip& clip = {},
                      SimdLevel level = DetectSimdLevel());

// out = gradients[0] + gradients[1] + ... in rank order, and its sum of squares: the bits that
// ApplyOptimizer() computes on its way. What a clip by global norm needs before any update: after
// it, ApplyOptimizer() with out as the only rank. out may be any gradient in f32, and may overlap
// one of 16 bits that ends at or behind out's end.
double SumGradients(float* out, const Gradient* gradients, int ranks, int64_t n,
                    SimdLevel level = DetectSimdLevel());

// What a tensor's trust ratio compares, each a sum of squares, added up in 32 lanes as above.
struct DirectionSquares {
  double values = 0;
  double direction = 0;  // kLamb: of u; the others: of g after `clip`
};

// Of what ApplyOptimizer() is about to do; writes nothing. A tensor's ratio needs all of its runs,
// so that an update with one is two passes: this one reads what the other does, (ranks + 1 + slots)
// n floats, but for the slots of rules that do not need them.
DirectionSquares MeasureDirection(const OptimizerSettings& settings, int64_t step,
                                  const OptimizerBuffers& buffers, int64_t n,
                                  const GradientClip& clip = {},
                                  SimdLevel level = DetectSimdLevel());

// Moves a statistic (a running mean) towards the sum of the ranks' contributions:
//   value_out = value_in + momentum (contributions[0] + contributions[1] + ... - value_in)
// in float, each operation correctly rounded. Returns the sum of squares of the contributions' sum,
// so that one which is not finite is seen. value_out overlaps nothing but may be value_in.
double ApplyStatistic(float* value_out, const float* value_in, const Gradient* contributions,
                      int ranks, double momentum, int64_t n, SimdLevel level = DetectSimdLevel());

}  // namespace muster::kernels
