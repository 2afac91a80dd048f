// The loops of attention.h, once per instruction set.
#pragma once

#include <cstdint>

namespace muster::kernels {

// Each function works on n >= 1 scores of one row. A null mask means zeros.
struct AttentionLoops {
  // The state of a softmax that is computed block by block.
  struct Running {
    float max;
    float sum;  // sum of exp(score - max) so far
  };

  // Replaces s by exp(score - max) with score[i] = scale s[i] + mask[i], and updates `row`. max is
  // the maximum of the row so far. Returns the factor for the results of earlier blocks.
  float (*softmax_block)(float* s, const float* mask, float scale, int64_t n, Running* row);

  // Replaces s by p = exp(score - lse), and dp by p (dp - mean) scale, the derivative by s.
  void (*softmax_block_grad)(float* s, float* dp, const float* mask, float scale, float lse,
                             float mean, int64_t n);

  void (*scale)(float* y, float factor, int64_t n);  // y *= factor
  double (*dot)(const float* a, const float* b, int64_t n);
};

namespace baseline {
extern const AttentionLoops kAttentionLoops;
}
namespace avx2 {
extern const AttentionLoops kAttentionLoops;
}
namespace avx512 {
extern const AttentionLoops kAttentionLoops;
}

}  // namespace muster::kernels
