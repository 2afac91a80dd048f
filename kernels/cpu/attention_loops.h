// The loops of attention.h, once per instruction set.
#pragma once

#include <cstdint>

namespace muster::kernels {

// One row of a block of n >= 1 scores. A null mask is zeros.
struct AttentionLoops {
  // Of a softmax that is taken block by block.
  struct Running {
    float max;
    float sum;  // of exp(score - max) so far
  };

  // With score[i] = scale s[i] + mask[i]: s = exp(score - max), max that of the row so far, and
  // `row` taken further. Returns what the earlier blocks' results must be multiplied by.
  float (*softmax_block)(float* s, const float* mask, float scale, int64_t n, Running* row);

  // s = p = exp(score - lse), and dp = p (dp - mean) scale: the derivative by s.
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
