#include "kernels/attention.h"

#include "kernels/comparison.h"
#include "kernels/reference.h"

namespace muster::kernels {
namespace {

class AttentionTest : public testing::TestWithParam<AttentionShape> {
 protected:
  const AttentionShape shape_ = GetParam();
  const reference::Attention reference_{shape_.batch, shape_.context, shape_.channels,
                                        shape_.heads};
  const Floats qkv_ = Normals(shape_.batch * shape_.context * 3 * shape_.channels, 1);
  const Floats dy_ = Normals(shape_.batch * shape_.context * shape_.channels, 2);
  Floats y_ = Floats(dy_.size(), NAN);
  Floats probabilities_ =
      Floats(shape_.batch * shape_.heads * shape_.context * shape_.context, NAN);
};

// 130 spans three blocks of queries, 64 exactly one.
INSTANTIATE_TEST_SUITE_P(OddSizes, AttentionTest,
                         testing::Values(AttentionShape{1, 1, 1, 1}, AttentionShape{2, 5, 6, 3},
                                         AttentionShape{1, 17, 20, 4}, AttentionShape{2, 64, 8, 1},
                                         AttentionShape{1, 65, 14, 2},
                                         AttentionShape{1, 130, 6, 2}));

TEST_P(AttentionTest, ForwardMixesThePastByItsSoftmaxWeights) {
  CausalAttention(y_.data(), probabilities_.data(), qkv_.data(), shape_);

  ExpectClose(y_, reference_.Forward(Wide(qkv_)), shape_.context);
  for (int64_t b = 0; b < shape_.batch; ++b) {
    for (int64_t h = 0; h < shape_.heads; ++h) {
      for (int64_t t = 0; t < shape_.context; ++t) {
        std::vector<double> expected = reference_.Weights(Wide(qkv_), b, h, t);
        expected.resize(shape_.context, 0.0);
        const float* row =
            &probabilities_[((b * shape_.heads + h) * shape_.context + t) * shape_.context];
        ExpectClose(Floats(row, row + shape_.context), expected, shape_.context);
      }
    }
  }
}

TEST_P(AttentionTest, DerivativeIsTheChainRuleThroughTheSoftmax) {
  CausalAttention(y_.data(), probabilities_.data(), qkv_.data(), shape_);
  Floats dqkv(qkv_.size(), NAN), workspace(shape_.grad_workspace_floats(), NAN);

  CausalAttentionGrad(dqkv.data(), dy_.data(), qkv_.data(), probabilities_.data(), workspace.data(),
                      shape_);

  // A key's gradient sums over the context what itself is a sum over the head's channels.
  ExpectClose(dqkv, reference_.Backward(Wide(dy_), Wide(qkv_)), 4 * shape_.context);
}

}  // namespace
}  // namespace muster::kernels
