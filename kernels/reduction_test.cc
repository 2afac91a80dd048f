#include "kernels/reduction.h"

#include "kernels/comparison.h"

namespace muster::kernels::reduction_test {
namespace {

using Shape = std::vector<int64_t>;

struct Case {
  Shape shape, axes;
};

class ReductionTest : public testing::TestWithParam<Case> {
 protected:
  // Returns the output that element i of the tensor is reduced to.
  int64_t OutputOf(int64_t i) const {
    const Shape& shape = GetParam().shape;
    int64_t output = 0, elements = 1;
    for (int64_t d = static_cast<int64_t>(shape.size()) - 1; d >= 0; --d) {
      const int64_t index = i % shape[d];
      i /= shape[d];
      if (IsReduced(d)) continue;
      output += index * elements;
      elements *= shape[d];
    }
    return output;
  }

  bool IsReduced(int64_t d) const {
    for (int64_t axis : GetParam().axes) {
      if (d == (axis < 0 ? axis + static_cast<int64_t>(GetParam().shape.size()) : axis)) {
        return true;
      }
    }
    return false;
  }

  int64_t Outputs() const {
    int64_t outputs = 1;
    for (size_t d = 0; d < GetParam().shape.size(); ++d) {
      outputs *= IsReduced(d) ? 1 : GetParam().shape[d];
    }
    return outputs;
  }

  const Floats x_ = Normals(Elements(GetParam().shape), 1);
  const Operand operand_{x_.data(), GetParam().shape};
  const Dimensions axes_ = GetParam().axes;
  const int64_t terms_ = static_cast<int64_t>(x_.size()) / Outputs();
  Floats y_ = Floats(Outputs(), NAN);
};

const Case kCases[] = {
    {{1}, {0}},
    {{7}, {0}},
    {{7}, {}},
    {{3, 5}, {1}},
    {{3, 5}, {0}},
    {{3, 5}, {0, 1}},
    {{33, 70}, {-1}},
    {{70, 33}, {0}},
    {{2, 3, 4, 5}, {1}},
    {{2, 3, 4, 5}, {2}},
    {{4, 3, 50, 7}, {0, 2, 3}},
    {{5, 1, 6}, {1}},
    {{2, 40000}, {1}},
    {{40000, 2}, {0}},
    {{5000, 17}, {0}},
    {{100000}, {0}},
    {{3, 200, 600}, {1}},
    {{2, 3, 4, 5}, {-4, -2}},
};

INSTANTIATE_TEST_SUITE_P(Shapes, ReductionTest, testing::ValuesIn(kCases));

TEST_P(ReductionTest, SumsAndMeansAddEveryElementOnce) {
  std::vector<double> sums(Outputs(), 0.0), means(Outputs(), 0.0);
  for (size_t i = 0; i < x_.size(); ++i) {
    sums[OutputOf(i)] += x_[i];
    means[OutputOf(i)] += double{x_[i]} / terms_;
  }
  ReduceSum(y_.data(), operand_, axes_);
  ExpectClose(y_, sums, terms_);
  ReduceMean(y_.data(), operand_, axes_);
  ExpectClose(y_, means, terms_);
}

TEST_P(ReductionTest, TheirDerivativesRepeatDy) {
  const Floats dy = Normals(Outputs(), 2);
  Floats dx(x_.size(), NAN);
  ReduceSumGrad(dx.data(), GetParam().shape, dy.data(), axes_);
  for (size_t i = 0; i < dx.size(); ++i) ASSERT_EQ(dx[i], dy[OutputOf(i)]);
  ReduceMeanGrad(dx.data(), GetParam().shape, dy.data(), axes_);
  for (size_t i = 0; i < dx.size(); ++i) ASSERT_FLOAT_EQ(dx[i], dy[OutputOf(i)] / terms_);
}

TEST_P(ReductionTest, EqualMaximaShareTheGradient) {
  Floats x = x_;
  for (float& v : x) v = std::round(2 * v);  // many are equal
  std::vector<float> maxima(Outputs(), -INFINITY);
  for (size_t i = 0; i < x.size(); ++i) {
    maxima[OutputOf(i)] = std::max(maxima[OutputOf(i)], x[i]);
  }
  std::vector<int> equals(Outputs(), 0);
  for (size_t i = 0; i < x.size(); ++i) equals[OutputOf(i)] += x[i] == maxima[OutputOf(i)];
  const Floats dy = Normals(Outputs(), 2);

  ReduceMax(y_.data(), {x.data(), GetParam().shape}, axes_);
  EXPECT_EQ(y_, maxima);
  Floats dx(x.size(), NAN);
  ReduceMaxGrad(dx.data(), dy.data(), {x.data(), GetParam().shape}, y_.data(), axes_);
  for (size_t i = 0; i < x.size(); ++i) {
    const int64_t output = OutputOf(i);
    ASSERT_FLOAT_EQ(dx[i], x[i] == maxima[output] ? dy[output] / equals[output] : 0);
  }
  ReduceMaxGrad(x.data(), dy.data(), {x.data(), GetParam().shape}, y_.data(), axes_);
  EXPECT_EQ(x, dx);
}

TEST_P(ReductionTest, AMaximumShowsEveryNan) {
  for (size_t at : {size_t{0}, x_.size() / 2, x_.size() - 1}) {
    Floats x = x_;
    x[at] = NAN;
    ReduceMax(y_.data(), {x.data(), GetParam().shape}, axes_);
    EXPECT_TRUE(std::isnan(y_[OutputOf(at)]));
  }
}

TEST_P(ReductionTest, ThreadsDoNotChangeTheResult) {
  ExpectSameOnAnyThreads([&] {
    ReduceSum(y_.data(), operand_, axes_);
    return y_;
  });
}

}  // namespace
}  // namespace muster::kernels::reduction_test
