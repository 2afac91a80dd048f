#include "kernels/linear.h"

#include "kernels/comparison.h"
#include "kernels/reference.h"

namespace muster::kernels {
namespace {

class LinearTest : public testing::TestWithParam<LinearShape> {
 protected:
  const LinearShape shape_ = GetParam();
  const Floats x_ = Normals(shape_.rows * shape_.inputs, 1);
  const Floats w_ = Normals(shape_.outputs * shape_.inputs, 2);
  const Floats bias_ = Normals(shape_.outputs, 3);
  const Floats dy_ = Normals(shape_.rows * shape_.outputs, 4);
};

INSTANTIATE_TEST_SUITE_P(OddSizes, LinearTest,
                         testing::Values(LinearShape{1, 1, 1}, LinearShape{7, 3, 5},
                                         LinearShape{33, 17, 1}, LinearShape{1, 129, 31},
                                         LinearShape{65, 100, 37}));

TEST_P(LinearTest, ForwardIsTheProductPlusTheBias) {
  const auto [rows, inputs, outputs] = shape_;
  std::vector<double> expected = reference::Product(
      Wide(x_), reference::Transpose(Wide(w_), outputs, inputs), rows, inputs, outputs);
  Floats y(expected.size(), NAN);

  Linear(y.data(), x_.data(), w_.data(), nullptr, shape_);
  ExpectClose(y, expected, inputs);

  for (size_t i = 0; i < expected.size(); ++i) expected[i] += bias_[i % outputs];
  Linear(y.data(), x_.data(), w_.data(), bias_.data(), shape_);
  ExpectClose(y, expected, inputs);
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

}  // namespace
}  // namespace muster::kernels
