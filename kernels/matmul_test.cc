#include "kernels/matmul.h"

#include <ostream>

#include "kernels/comparison.h"
#include "kernels/reference.h"
#include "kernels/threads.h"

namespace muster::kernels::matmul_test {
namespace {

struct MatMulCase {
  MatMulShape shape;
  // For each matrix of c, the matrices of a and b that produce it.
  std::vector<int64_t> a;
  std::vector<int64_t> b;
};

void PrintTo(const MatMulCase& c, std::ostream* out) {
  *out << c.shape.rows << " x " << c.shape.inner << (c.shape.transpose_a ? " ᵀ" : "") << ", "
       << c.shape.inner << " x " << c.shape.columns << (c.shape.transpose_b ? " ᵀ" : "") << ", "
       << c.a.size() << " matrices";
}

class MatMulTest : public testing::TestWithParam<MatMulCase> {
 protected:
  static int64_t Matrices(const std::vector<int64_t>& batch) {
    int64_t n = 1;
    for (int64_t size : batch) n *= size;
    return n;
  }

  // Calls f(index in c, index in a, index in b) for every product.
  template <typename F>
  void ForEachProduct(F f) const {
    const int64_t m = shape_.rows, n = shape_.columns, k = shape_.inner;
    for (size_t i = 0; i < GetParam().a.size(); ++i)
      for (int64_t r = 0; r < m; ++r)
        for (int64_t c = 0; c < n; ++c)
          for (int64_t j = 0; j < k; ++j) {
            f((i * m + r) * n + c,
              GetParam().a[i] * m * k + (shape_.transpose_a ? j * m + r : r * k + j),
              GetParam().b[i] * k * n + (shape_.transpose_b ? c * k + j : j * n + c));
          }
  }

  const MatMulShape shape_ = GetParam().shape;
  const Floats a_ = Normals(Matrices(shape_.a_batch) * shape_.rows * shape_.inner, 1);
  const Floats b_ = Normals(Matrices(shape_.b_batch) * shape_.inner * shape_.columns, 2);
  const Floats dc_ = Normals(GetParam().a.size() * shape_.rows * shape_.columns, 3);
};

std::vector<MatMulCase> Cases() {
  std::vector<MatMulCase> cases;
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      cases.push_back({{1, 1, 1, {}, {}, ta, tb}, {0}, {0}});
      cases.push_back({{7, 5, 3, {}, {}, ta, tb}, {0}, {0}});
      cases.push_back({{150, 170, 130, {}, {}, ta, tb}, {0}, {0}});
      cases.push_back({{7, 5, 3, {2, 2}, {2, 2}, ta, tb}, {0, 1, 2, 3}, {0, 1, 2, 3}});
      cases.push_back({{4, 9, 1, {3}, {}, ta, tb}, {0, 1, 2}, {0, 0, 0}});
      cases.push_back({{4, 9, 6, {}, {3}, ta, tb}, {0, 0, 0}, {0, 1, 2}});
      cases.push_back({{3, 2, 5, {2, 1}, {1, 3}, ta, tb}, {0, 0, 0, 1, 1, 1}, {0, 1, 2, 0, 1, 2}});
      cases.push_back({{3, 2, 5, {2, 1, 2}, {2, 1}, ta, tb},
                       {0, 1, 0, 1, 2, 3, 2, 3},
                       {0, 0, 1, 1, 0, 0, 1, 1}});
      cases.push_back({{170, 180, 160, {2}, {2}, ta, tb}, {0, 1}, {0, 1}});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Shapes, MatMulTest, testing::ValuesIn(Cases()));

TEST_P(MatMulTest, ForwardIsTheProductOfTheBroadcastMatrices) {
  std::vector<double> expected(dc_.size(), 0.0);
  ForEachProduct([&](int64_t c, int64_t a, int64_t b) { expected[c] += double{a_[a]} * b_[b]; });
  Floats c(dc_.size(), NAN);

  MatMul(c.data(), a_.data(), b_.data(), shape_);

  ExpectClose(c, expected, shape_.inner);
}

TEST_P(MatMulTest, DerivativesAreSummedOverWhatWasBroadcast) {
  std::vector<double> expected_da(a_.size(), 0.0), expected_db(b_.size(), 0.0);
  ForEachProduct([&](int64_t c, int64_t a, int64_t b) {
    expected_da[a] += double{dc_[c]} * b_[b];
    expected_db[b] += double{dc_[c]} * a_[a];
  });
  Floats da(a_.size(), NAN), db(b_.size(), NAN);

  MatMulGradA(da.data(), dc_.data(), b_.data(), shape_);
  MatMulGradB(db.data(), dc_.data(), a_.data(), shape_);

  ExpectClose(da, expected_da, 4 * shape_.columns);
  ExpectClose(db, expected_db, 4 * shape_.rows);
}

TEST_P(MatMulTest, SeveralThreadsGiveTheSameSumsAndRepeatToTheBit) {
  auto run = [&] {
    Floats c(dc_.size(), NAN), da(a_.size(), NAN), db(b_.size(), NAN);
    MatMul(c.data(), a_.data(), b_.data(), shape_);
    MatMulGradA(da.data(), dc_.data(), b_.data(), shape_);
    MatMulGradB(db.data(), dc_.data(), a_.data(), shape_);
    return std::vector<Floats>{c, da, db};
  };
  SetThreads(1);
  const std::vector<Floats> alone = run();
  SetThreads(3);
  const std::vector<Floats> together = run();

  EXPECT_EQ(run(), together);
  ExpectClose(together[0], Wide(alone[0]), shape_.inner);
  ExpectClose(together[1], Wide(alone[1]), 4 * shape_.columns);
  ExpectClose(together[2], Wide(alone[2]), 4 * shape_.rows);
  SetThreads(1);
}

}  // namespace
}  // namespace muster::kernels::matmul_test
