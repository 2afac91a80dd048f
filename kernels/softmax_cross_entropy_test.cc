#include "kernels/softmax_cross_entropy.h"

#include "kernels/comparison.h"
#include "kernels/reference.h"

namespace muster::kernels::softmax_cross_entropy_test {
namespace {

class SoftmaxCrossEntropyTest : public testing::TestWithParam<CrossEntropyShape> {
 protected:
  Floats Logits() const {
    Floats logits = Normals(shape_.rows * shape_.classes, 1);
    for (float& v : logits) v = 5 * v + 100;  // far from zero: the maximum must be taken out
    return logits;
  }
  std::vector<int32_t> Targets() const {
    std::vector<int32_t> target = RandomIds(shape_.rows, shape_.classes, 2);
    if (shape_.ignore_index) {
      for (int64_t r = 0; r < shape_.rows; r += 3) target[r] = *shape_.ignore_index;
    }
    return target;
  }

  const CrossEntropyShape shape_ = GetParam();
  const Floats logits_ = Logits();
  const std::vector<int32_t> target_ = Targets();
  Floats lse_ = Floats(shape_.rows, NAN);
};

INSTANTIATE_TEST_SUITE_P(OddSizes, SoftmaxCrossEntropyTest,
                         testing::Values(CrossEntropyShape{1, 1}, CrossEntropyShape{3, 2},
                                         CrossEntropyShape{5, 10}, CrossEntropyShape{4, 17, 0.1f},
                                         CrossEntropyShape{9, 257, 0.0f, -100},
                                         CrossEntropyShape{70, 1025, 0.2f, 3}));

TEST_P(SoftmaxCrossEntropyTest, LossAndDerivativeMatchTheirFormulas) {
  const int64_t classes = shape_.classes;
  std::vector<double> expected_grad;
  double expected_loss = 0;
  for (int64_t r = 0; r < shape_.rows; ++r) {
    const float* row = &logits_[r * classes];
    const double counts = target_[r] != shape_.ignore_index;
    int64_t c = 0;
    for (double p : reference::Softmax(std::vector<double>(row, row + classes))) {
      const double smoothing = shape_.label_smoothing;
      const double wanted = (1 - smoothing) * (c++ == target_[r]) + smoothing / classes;
      if (wanted > 0) expected_loss -= counts * 0.25 * wanted * std::log(p);
      expected_grad.push_back(counts * 0.25 * (p - wanted));
    }
  }
  float loss = NAN;
  Floats dlogits(logits_.size(), NAN);

  SoftmaxCrossEntropy(&loss, lse_.data(), logits_.data(), target_.data(), 0.25f, shape_);
  SoftmaxCrossEntropyGrad(dlogits.data(), logits_.data(), target_.data(), lse_.data(), 0.25f,
                          shape_);

  // The differences of logits near 100 carry an absolute error of 2^-18 or so.
  EXPECT_NEAR(loss, expected_loss, 1e-5 * shape_.rows);
  for (size_t i = 0; i < dlogits.size(); ++i) ASSERT_NEAR(dlogits[i], expected_grad[i], 4e-6);

  Floats in_place = logits_;
  SoftmaxCrossEntropyGrad(in_place.data(), in_place.data(), target_.data(), lse_.data(), 0.25f,
                          shape_);
  EXPECT_EQ(in_place, dlogits);
}

TEST_P(SoftmaxCrossEntropyTest, ThreadsDoNotChangeTheResult) {
  ExpectSameOnAnyThreads([&] {
    Floats results = lse_;
    float loss;
    SoftmaxCrossEntropy(&loss, results.data(), logits_.data(), target_.data(), 1.0f, shape_);
    results.push_back(loss);
    return results;
  });
}

TEST_P(SoftmaxCrossEntropyTest, RanksWithPartsOfTheClassesGiveWhatOneGives) {
  float whole_loss = NAN;
  SoftmaxCrossEntropy(&whole_loss, lse_.data(), logits_.data(), target_.data(), 0.25f, shape_);
  Floats whole_grad(logits_.size(), NAN);
  SoftmaxCrossEntropyGrad(whole_grad.data(), logits_.data(), target_.data(), lse_.data(), 0.25f,
                          shape_);
  const int64_t ranks = std::min<int64_t>(3, shape_.classes);
  std::vector<CrossEntropyShape> shapes;
  std::vector<Floats> own;
  Floats parts;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    CrossEntropyShape shape = shape_;
    shape.first = shape_.classes * rank / ranks;
    shape.classes = shape_.classes * (rank + 1) / ranks - shape.first;
    shape.whole = shape_.classes;
    Floats& logits = own.emplace_back();
    for (int64_t r = 0; r < shape_.rows; ++r) {
      const float* row = &logits_[r * shape_.classes + shape.first];
      logits.insert(logits.end(), row, row + shape.classes);
    }
    Floats part(shape_.rows * kCrossEntropyParts, NAN);
    SoftmaxCrossEntropyParts(part.data(), logits.data(), target_.data(), shape);
    parts.insert(parts.end(), part.begin(), part.end());
    shapes.push_back(shape);
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const CrossEntropyShape& shape = shapes[rank];
    float loss = NAN;
    Floats lse(shape_.rows, NAN), dlogits(own[rank].size(), NAN);
    MergeSoftmaxCrossEntropy(&loss, lse.data(), parts.data(), ranks, target_.data(), 0.25f, shape);
    SoftmaxCrossEntropyGrad(dlogits.data(), own[rank].data(), target_.data(), lse.data(), 0.25f,
                            shape);
    EXPECT_NEAR(loss, whole_loss, 1e-5 * shape_.rows);
    for (int64_t r = 0; r < shape_.rows; ++r) {
      EXPECT_FLOAT_EQ(lse[r], lse_[r]);
      for (int64_t c = 0; c < shape.classes; ++c) {
        ASSERT_NEAR(dlogits[r * shape.classes + c],
                    whole_grad[r * shape_.classes + shape.first + c], 4e-6);
      }
    }
  }
}

TEST(SoftmaxCrossEntropyTest, ARankWithoutAFiniteLogitAddsNothing) {
  const Floats parts = {-INFINITY, 0, 0, 2, 1, 2};
  const int32_t target = 1;
  float loss = NAN, lse = NAN;
  MergeSoftmaxCrossEntropy(&loss, &lse, parts.data(), /*ranks=*/2, &target, 1.0f,
                           {.rows = 1, .classes = 1, .first = 1, .whole = 2});
  EXPECT_EQ(lse, 2);
  EXPECT_EQ(loss, 0);
}

TEST(SoftmaxCrossEntropyTest, ABatchWithoutCountedRowsLosesNothing) {
  const Floats logits = {1, 2};
  const int32_t target = -1;
  const CrossEntropyShape shape{.rows = 1, .classes = 2, .ignore_index = -1};
  float loss = NAN, lse = NAN;
  Floats dlogits(2, NAN);
  SoftmaxCrossEntropy(&loss, &lse, logits.data(), &target, 1.0f, shape);
  SoftmaxCrossEntropyGrad(dlogits.data(), logits.data(), &target, &lse, 1.0f, shape);
  EXPECT_EQ(loss, 0);
  EXPECT_EQ(dlogits, (Floats{0, 0}));
}

TEST(SoftmaxCrossEntropyTest, BadTargetsAreFoundAndIgnoredOnesDoNotCount) {
  const std::vector<int32_t> target = {0, 4, -1, 5, -100};
  CrossEntropyShape shape{.rows = 5, .classes = 5};
  EXPECT_EQ(FirstBadTarget(target.data(), shape), 2);
  EXPECT_EQ(CountedTargets(target.data(), shape), 5);
  shape.ignore_index = -1;
  EXPECT_EQ(FirstBadTarget(target.data(), shape), 3);
  EXPECT_EQ(CountedTargets(target.data(), shape), 4);
  shape.rows = 3;
  EXPECT_EQ(FirstBadTarget(target.data(), shape), -1);
}

TEST(CorrectCountTest, CountsRowsWhoseFirstLargestLogitIsTheTarget) {
  const Floats logits = {1, 3, 2,  //
                         3, 1, 3,  //
                         3, 1, 3,  //
                         0, 1, NAN};
  // Rows: a hit; a hit that is the first of a tie; the second of a tie, no hit; NaN, no hit.
  const std::vector<int32_t> target = {1, 0, 2, 1};
  float count = NAN;
  CorrectCount(&count, logits.data(), target.data(), {4, 3});
  EXPECT_EQ(count, 2.0f);
  CorrectCount(&count, logits.data(), target.data(), {4, 3, 0, 0});
  EXPECT_EQ(count, 1.0f);
}

}  // namespace
}  // namespace muster::kernels::softmax_cross_entropy_test
