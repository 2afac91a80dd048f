// One optimizer update of a run of elements, fused with the sum of the ranks' gradients, so that
// every byte is read once.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cpu/simd_level.h"

namespace muster::kernels {

// The update rules. g is the gradient, p the value, lr the learning rate, wd the weight decay, r
// the trust ratio (1 unless set), and t = step + 1. The formulas are those of PyTorch 2
// (torch.optim reference, "algorithm" boxes), which differ from the papers where noted:
//
//   kSgd          g = r (g + wd p);  p -= lr g
//   kSgdMomentum  g = r (g + wd p);  b = momentum b + g;  p -= lr b
//                 no dampening; lr outside of b
//   kSgdNesterov  g = r (g + wd p);  b = momentum b + g;  p -= lr (g + momentum b)
//       Sutskever, Martens, Dahl, Hinton, "On the importance of initialization and momentum", ICML
//       2013. With a trust ratio kSgd and kSgdMomentum are LARS, except that lr is outside of b:
//       You, Gitman, Ginsburg, "Large batch training of convolutional networks", 2017.
//   kAdam         g += wd p;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//                 p -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//       Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015, algorithm 1.
//   kAdamw        p *= 1 - lr wd;  then as kAdam without g += wd p
//       Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019, algorithm 2.
//   kAdagrad      g += wd p;  s += g^2;  p -= lr g / (sqrt(s) + epsilon)
//       Duchi, Hazan, Singer, "Adaptive subgradient methods", JMLR 12, 2011.
//   kRmsprop      g += wd p;  s = alpha s + (1 - alpha) g^2;  p -= lr g / (sqrt(s) + epsilon)
//       Tieleman, Hinton, Coursera "Neural networks for machine learning", lecture 6.5, 2012.
//   kLamb         m, v as kAdam without g += wd p
//                 u = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + epsilon) + wd p
//                 p -= lr r u
//       You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR
//       2020, algorithm 2.
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

// Returns how many values (slots) the rule keeps for each parameter element. All start at 0.
int OptimizerSlots(OptimizerRule rule);

struct OptimizerSettings {
  OptimizerRule rule = OptimizerRule::kSgd;
  double momentum = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double alpha = 0.99;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double trust_ratio = 1;  // of the tensor in this update: computed from its DirectionSquares
};

enum class FloatType { kF32, kBf16, kF16 };

// A gradient as a rank sent it. Elements are widened when they are read.
struct Gradient {
  const void* elements = nullptr;  // [n], aligned as the type
  FloatType type = FloatType::kF32;
};

// The largest number of sums that are open at a time while gradients are added along a tree.
//
// `joins` below choose the order in which the ranks' gradients are added. Null joins mean rank
// order: ((g0 + g1) + g2) + ... Otherwise each gradient, in rank order, becomes the last open sum,
// and then the last two open sums become one, joins[rank] times. So {0, 1, 0, 2} adds
// (g0 + g1) + (g2 + g3).
//
// Requires: one sum remains, and no more than kOpenSumsMax are open at a time. Joins that break
// this end the process. A balanced tree of n ranks has up to 1 + ceil(log2 n) open sums, so the
// limit allows 2048 ranks. Sums are in blocks of 4 KiB on the stack, at most 44 KiB.
inline constexpr int kOpenSumsMax = 12;

// The outputs that bypass the caches, if their arrays are aligned to 64 bytes. That saves reading
// the lines that are overwritten: a quarter to a third of the traffic. Use it for outputs that are
// read only after a cache would have evicted them.
enum class Streaming { kNothing, kSlots, kSlotsAndValues };

// How the outgoing values (wire_out, otherwise values_out) are stored if they are not streamed. A
// processor that writes to a line which another processor has read must fetch it first. kUnfetched
// writes blocks of whole lines and avoids the fetch. Between processors without a common cache it
// takes two thirds of the time; otherwise it takes up to a third more. The result is the same.
enum class OutgoingStores { kDirect, kUnfetched };

// Each array has n elements. No output may overlap anything else.
struct OptimizerBuffers {
  const Gradient* gradients;  // [ranks], one per rank
  int ranks;                  // >= 1
  // [ranks], see kOpenSumsMax. Null: the gradients are added in rank order.
  const uint8_t* joins = nullptr;
  const float* values_in;
  float* values_out;
  // The slots, in the order of the formulas. Null if the rule has fewer.
  const float* slots_in[kOptimizerSlotsMax];
  float* slots_out[kOptimizerSlotsMax];
  // Receives values_out rounded to `wire_type`, kBf16 or kF16 (to the nearest, ties to even). In
  // f16, finite values beyond +-65504 become +-65504. Null: not needed.
  void* wire_out = nullptr;
  FloatType wire_type = FloatType::kF32;
  Streaming streaming = Streaming::kNothing;
  OutgoingStores outgoing_stores = OutgoingStores::kDirect;
};

// A clip of the summed gradient, before the rule: g = min(max(factor * sum, -limit), limit). The
// defaults change nothing and cost nothing.
struct GradientClip {
  double factor = 1;  // clipping by global norm: clip / norm; rounded to float
  double limit = std::numeric_limits<double>::infinity();  // clipping by value; rounded to float
};

// Applies update number `step` (counted from 0) to n elements: sum = gradients[0] + gradients[1] +
// ... in the order of `buffers.joins`, g = `clip` of sum, then the rule. Returns the sum of squares
// of the sum, before `clip`. The result is not finite if an element of the sum is not.
//
// Coefficients are computed in double and rounded once. Elements are computed in float, one
// operation of the formula after the other, each correctly rounded. So the result of an element
// does not depend on other elements, on how a parameter is cut into runs, or on the instruction
// set. The sum of squares adds element i of the run to lane i mod 32 of 32 doubles, then the lanes
// pairwise. So it depends on the start of the run, but not on the instruction set.
//
// Reads every rank's n elements and (1 + slots) n floats, writes (1 + slots) n: bandwidth-bound.
double ApplyOptimizer(const OptimizerSettings& settings, double learning_rate, int64_t step,
                      const OptimizerBuffers& buffers, int64_t n, const GradientClip& clip = {},
                      SimdLevel level = DetectSimdLevel());

// Computes out = gradients[0] + gradients[1] + ... in the order of `joins`, see kOpenSumsMax, and
// returns its sum of squares. The bits are those that ApplyOptimizer() computes internally. A clip
// by global norm needs this sum before any update; then call ApplyOptimizer() with `out` as the
// only rank.
//
// `out` may be any gradient in f32. It may overlap a gradient of 16 bits that ends at or behind the
// end of `out`.
double SumGradients(float* out, const Gradient* gradients, int ranks, int64_t n,
                    const uint8_t* joins = nullptr, SimdLevel level = DetectSimdLevel());

// The two numbers that a tensor's trust ratio compares. Each is a sum of squares, added up in 32
// lanes as above.
struct DirectionSquares {
  double values = 0;
  double direction = 0;  // of u for kLamb; of g after `clip` for the others
};

// Returns the squares of the update that ApplyOptimizer() would make; writes nothing. A tensor's
// ratio needs all of its runs, so an update with a ratio takes two passes. This pass reads the same
// data as the other, (ranks + 1 + slots) n floats, but omits slots that the rule's direction does
// not need.
DirectionSquares MeasureDirection(const OptimizerSettings& settings, int64_t step,
                                  const OptimizerBuffers& buffers, int64_t n,
                                  const GradientClip& clip = {},
                                  SimdLevel level = DetectSimdLevel());

// Moves a statistic (a running mean) towards the sum of the ranks' contributions:
//   value_out = value_in + momentum (contributions[0] + contributions[1] + ... - value_in)
// in float, each operation correctly rounded, the sum in the order of `joins`. Returns the sum of
// squares of the contributions' sum, which shows whether it is finite. value_out may be value_in,
// and must not overlap anything else.
double ApplyStatistic(float* value_out, const float* value_in, const Gradient* contributions,
                      int ranks, double momentum, int64_t n, const uint8_t* joins = nullptr,
                      SimdLevel level = DetectSimdLevel());

}  // namespace muster::kernels
