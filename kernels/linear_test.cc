#include "kernels/linear.h"

#include "kernels/activation.h"
#include "kernels/comparison.h"
#include "kernels/reference.h"
#include "kernels/threads.h"

namespace muster::kernels::linear_test {
namespace {

class LinearTest : public testing::TestWithParam<LinearShape> {
 protected:
  std::vector<double> Product() const {
    return reference::Product(Wide(x_),
                              reference::Transpose(Wide(w_), shape_.outputs, shape_.inputs),
                              shape_.rows, shape_.inputs, shape_.outputs);
  }
  std::vector<double> ProductPlusBias() const {
    std::vector<double> sum = Product();
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += bias_[i % shape_.outputs];
    return sum;
  }

  const LinearShape shape_ = GetParam();
  const Floats x_ = Normals(shape_.rows * shape_.inputs, 1);
  const Floats w_ = Normals(shape_.outputs * shape_.inputs, 2);
  const Floats bias_ = Normals(shape_.outputs, 3);
  const Floats dy_ = Normals(shape_.rows * shape_.outputs, 4);
};

// In the last two cases threads divide the work, by columns and by rows.
INSTANTIATE_TEST_SUITE_P(Sizes, LinearTest,
                         testing::Values(LinearShape{1, 1, 1}, LinearShape{7, 3, 5},
                                         LinearShape{33, 17, 1}, LinearShape{1, 129, 31},
                                         LinearShape{65, 100, 37}, LinearShape{64, 200, 301},
                                         LinearShape{401, 130, 97}));

TEST_P(LinearTest, ForwardIsTheProductPlusTheBias) {
  Floats y(dy_.size(), NAN);

  Linear(y.data(), x_.data(), w_.data(), nullptr, shape_);
  ExpectClose(y, Product(), shape_.inputs);

  Linear(y.data(), x_.data(), w_.data(), bias_.data(), shape_);
  ExpectClose(y, ProductPlusBias(), shape_.inputs);
}

TEST_P(LinearTest, AnEpilogueIsTheFunctionOfTheForwardResult) {
  Floats linear(dy_.size(), NAN), expected(dy_.size(), NAN), y(dy_.size(), NAN),
      preactivation(dy_.size(), NAN);
  Linear(linear.data(), x_.data(), w_.data(), bias_.data(), shape_);

  Relu(expected.data(), linear.data(), linear.size());
  LinearRelu(y.data(), x_.data(), w_.data(), bias_.data(), shape_);
  EXPECT_EQ(y, expected);

  Gelu(expected.data(), linear.data(), linear.size());
  LinearGelu(y.data(), preactivation.data(), x_.data(), w_.data(), bias_.data(), shape_,
             GeluKind::kTanh);
  EXPECT_EQ(y, expected);
  EXPECT_EQ(preactivation, linear);

  GeluExact(expected.data(), linear.data(), linear.size());
  LinearGelu(y.data(), preactivation.data(), x_.data(), w_.data(), bias_.data(), shape_,
             GeluKind::kExact);
  EXPECT_EQ(y, expected);
}

TEST_P(LinearTest, DerivativesAreTheTransposedProducts) {
  const auto [rows, inputs, outputs] = shape_;
  Floats dx(rows * inputs, NAN), dw(outputs * inputs, NAN), db(outputs, NAN);

  LinearGradInput(dx.data(), dy_.data(), w_.data(), shape_);
  LinearGradWeight(dw.data(), dy_.data(), x_.data(), shape_);
  LinearGradBias(db.data(), dy_.data(), shape_);

  ExpectClose(dx, reference::Product(Wide(dy_), Wide(w_), rows, outputs, inputs), outputs);
  ExpectClose(dw,
              reference::Product(reference::Transpose(Wide(dy_), rows, outputs), Wide(x_), outputs,
                                 rows, inputs),
              rows);
  ExpectClose(db, reference::SumRows(Wide(dy_), rows, outputs), rows);
}

TEST_P(LinearTest, SeveralThreadsGiveTheSameSumsAndRepeatToTheBit) {
  const auto [rows, inputs, outputs] = shape_;
  auto run = [&, rows = rows, inputs = inputs, outputs = outputs] {
    Floats y(dy_.size(), NAN), dx(rows * inputs, NAN), dw(outputs * inputs, NAN);
    Linear(y.data(), x_.data(), w_.data(), bias_.data(), shape_);
    LinearGradInput(dx.data(), dy_.data(), w_.data(), shape_);
    LinearGradWeight(dw.data(), dy_.data(), x_.data(), shape_);
    return std::vector<Floats>{y, dx, dw};
  };
  SetThreads(1);
  const std::vector<Floats> alone = run();
  SetThreads(3);
  const std::vector<Floats> together = run();

  EXPECT_EQ(run(), together);
  ExpectClose(together[0], Wide(alone[0]), inputs);
  ExpectClose(together[1], Wide(alone[1]), outputs);
  ExpectClose(together[2], Wide(alone[2]), rows);
  SetThreads(1);
}

}  // namespace
}  // namespace muster::kernels::linear_test
