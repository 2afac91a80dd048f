// The loops of optimizer.h, compiled once per instruction set.
#pragma once

#include <cstdint>

#include "kernels/optimizer/optimizer.h"

namespace muster::kernels {

// The coefficients of the formulas, rounded to float.
struct OptimizerCoefficients {
  float learning_rate;  // kAdam, kAdamw: over 1 - beta1^t; kLamb: times the trust ratio
  float decay;          // factor of p that is added to g (kLamb: to u); kAdamw: factor of p
  float first;          // momentum, beta1
  float first_rest;     // 1 - beta1
  float first_scale;    // kLamb: 1 / (1 - beta1^t)
  float second;         // beta2, alpha
  float second_rest;    // 1 - beta2, 1 - alpha
  float second_scale;   // 1 / sqrt(1 - beta2^t)
  float epsilon;
};

// GradientClip, rounded to float.
struct ClipCoefficients {
  float factor;
  float limit;
  bool changes_nothing;
};

using ApplyOptimizerLoop = double(OptimizerRule rule, const OptimizerCoefficients& coefficients,
                                  const ClipCoefficients& clip, const OptimizerBuffers& buffers,
                                  int64_t n);
using MeasureDirectionLoop = DirectionSquares(OptimizerRule rule,
                                              const OptimizerCoefficients& coefficients,
                                              const ClipCoefficients& clip,
                                              const OptimizerBuffers& buffers, int64_t n);
using SumGradientsLoop = double(float* out, const Gradient* gradients, const uint8_t* joins,
                                int ranks, int64_t n);
using ApplyStatisticLoop = double(float* value_out, const float* value_in,
                                  const Gradient* contributions, const uint8_t* joins, int ranks,
                                  float momentum, int64_t n);

namespace baseline {
ApplyOptimizerLoop Apply;
MeasureDirectionLoop Measure;
SumGradientsLoop Sum;
ApplyStatisticLoop ApplyToStatistic;
}  // namespace baseline
namespace avx2 {
ApplyOptimizerLoop Apply;
MeasureDirectionLoop Measure;
SumGradientsLoop Sum;
ApplyStatisticLoop ApplyToStatistic;
}  // namespace avx2
namespace avx512 {
ApplyOptimizerLoop Apply;
MeasureDirectionLoop Measure;
SumGradientsLoop Sum;
ApplyStatisticLoop ApplyToStatistic;
}  // namespace avx512

}  // namespace muster::kernels
