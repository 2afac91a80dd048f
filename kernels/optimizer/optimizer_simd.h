// The loops of optimizer.h, once per instruction set.
#pragma once

#include <cstdint>

#include "kernels/optimizer/optimizer.h"

namespace muster::kernels {

// What the formulas need, rounded to float.
struct OptimizerCoefficients {
  float learning_rate;  // kAdam, kAdamw: over 1 - beta1^t
  float decay;          // added to g: wd p; kAdamw: p is multiplied by it
  float first;          // momentum, beta1
  float first_rest;     // 1 - beta1
  float second;         // beta2, alpha
  float second_rest;    // 1 - beta2, 1 - alpha
  float correction;     // sqrt(1 - beta2^t)
  float epsilon;
};

using ApplyOptimizerLoop = double(OptimizerRule rule, const OptimizerCoefficients& coefficients,
                                  const OptimizerBuffers& buffers, int64_t n);

namespace baseline {
ApplyOptimizerLoop Apply;
}
namespace avx2 {
ApplyOptimizerLoop Apply;
}
namespace avx512 {
ApplyOptimizerLoop Apply;
}

}  // namespace muster::kernels
