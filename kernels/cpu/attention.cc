#include "kernels/attention.h"

#include <cmath>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vector_kernels.h"

namespace muster::kernels {
namespace {

// One head of one sample: q, k and v are strided views into qkv, y into the channels.
struct Head {
  int64_t channel;      // offset of q and y in their rows
  int64_t qkv;          // offset of the sample in qkv
  int64_t y;            // offset of the sample in y
  int64_t probability;  // offset of the head in probabilities
};

template <typename F>
void ForEachHead(const AttentionShape& s, F f) {
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      f(Head{.channel = h * s.head_channels(),
             .qkv = b * s.context * 3 * s.channels,
             .y = b * s.context * s.channels,
             .probability = (b * s.heads + h) * s.context * s.context});
    }
  }
}

float Scale(const AttentionShape& s) { return 1.0f / std::sqrt(float(s.head_channels())); }

}  // namespace

void CausalAttention(float* y, float* probabilities, const float* qkv, const AttentionShape& s) {
  const VectorKernels& vectors = Vectors();
  const int64_t width = 3 * s.channels;
  ForEachHead(s, [&](const Head& head) {
    const float* q = qkv + head.qkv + head.channel;
    const float* k = q + s.channels;
    const float* v = k + s.channels;
    float* p = probabilities + head.probability;
    for (int64_t first = 0; first < s.context; first += s.block()) {
      const int64_t last = std::min(first + s.block(), s.context);
      const int64_t rows = last - first;
      float* block = p + first * s.context;
      Gemm(block, s.context, {q + first * width, width}, MatrixView{k, width}.T(),
           {rows, last, s.head_channels()});
      for (int64_t t = first; t < last; ++t) {
        float* row = p + t * s.context;
        vectors.softmax(row, row, Scale(s), t + 1);
        std::fill(row + t + 1, row + s.context, 0.0f);
      }
      Gemm(y + head.y + first * s.channels + head.channel, s.channels, {block, s.context},
           {v, width}, {rows, s.head_channels(), last});
    }
  });
}

void CausalAttentionGrad(float* dqkv, const float* dy, const float* qkv, const float* probabilities,
                         float* workspace, const AttentionShape& s) {
  const VectorKernels& vectors = Vectors();
  const int64_t width = 3 * s.channels;
  ForEachHead(s, [&](const Head& head) {
    const int64_t q = head.qkv + head.channel;
    const int64_t k = q + s.channels;
    const int64_t v = k + s.channels;
    // The last block reaches every key and value: it assigns their gradients, the others add.
    GemmMode mode = GemmMode::kAssign;
    for (int64_t first = (s.context - 1) / s.block() * s.block(); first >= 0; first -= s.block()) {
      const int64_t last = std::min(first + s.block(), s.context);
      const int64_t rows = last - first;
      const MatrixView p{probabilities + head.probability + first * s.context, s.context};
      const MatrixView out{dy + head.y + first * s.channels + head.channel, s.channels};
      const MatrixView dscores{workspace, last};

      Gemm(dqkv + v, width, p.T(), out, {last, s.head_channels(), rows}, mode);
      Gemm(workspace, last, out, MatrixView{qkv + v, width}.T(), {rows, last, s.head_channels()});
      for (int64_t t = first; t < last; ++t) {
        float* row = workspace + (t - first) * last;
        vectors.softmax_grad(row, p.data + (t - first) * s.context, row, Scale(s), t + 1);
        std::fill(row + t + 1, row + last, 0.0f);
      }
      Gemm(dqkv + q + first * width, width, dscores, {qkv + k, width},
           {rows, s.head_channels(), last});
      Gemm(dqkv + k, width, dscores.T(), {qkv + q + first * width, width},
           {last, s.head_channels(), rows}, mode);
      mode = GemmMode::kAccumulate;
    }
  });
}

}  // namespace muster::kernels
