#include "kernels/transpose.h"

#include <numeric>

#include "kernels/comparison.h"

namespace muster::kernels::transpose_test {
namespace {

struct Case {
  std::vector<int64_t> shape, permutation;
};

class TransposeTest : public testing::TestWithParam<Case> {};

const Case kCases[] = {
    {{}, {}},
    {{5}, {0}},
    {{3, 4}, {1, 0}},
    {{65, 130}, {1, 0}},
    {{1, 7}, {1, 0}},
    {{8, 8}, {0, 1}},
    {{2, 3, 5, 7}, {0, 2, 1, 3}},    // heads and positions
    {{2, 3, 33, 17}, {0, 1, 3, 2}},  // the last two
    {{2, 3, 5, 7}, {0, 2, 3, 1}},    // channels last
    {{2, 3, 5, 7}, {3, 1, 0, 2}},
    {{2, 1, 3, 1, 20}, {4, 3, 2, 1, 0}},
    {{4, 70, 66}, {2, 0, 1}},
    {{300, 200}, {1, 0}},
};

INSTANTIATE_TEST_SUITE_P(Shapes, TransposeTest, testing::ValuesIn(kCases));

template <typename T>
void ExpectTransposed(const Case& c) {
  const int64_t n = Elements(c.shape);
  std::vector<T> x(n), y(n, 0);
  std::iota(x.begin(), x.end(), 1);
  Transpose(y.data(), x.data(), c.shape, c.permutation, sizeof(T));
  for (int64_t i = 0; i < n; ++i) {
    // Element i of y: its indices from the last dimension on, and where they lead in x.
    int64_t rest = i, from = 0;
    for (size_t k = c.permutation.size(); k-- > 0;) {
      const int64_t d = c.permutation[k];
      int64_t stride = 1;
      for (size_t inner = d + 1; inner < c.shape.size(); ++inner) stride *= c.shape[inner];
      from += rest % c.shape[d] * stride;
      rest /= c.shape[d];
    }
    ASSERT_EQ(y[i], x[from]) << "element " << i;
  }
}

TEST_P(TransposeTest, EveryElementFindsItsPlace) {
  ExpectTransposed<uint32_t>(GetParam());
  ExpectTransposed<uint16_t>(GetParam());
  SetThreads(3);
  ExpectTransposed<uint32_t>(GetParam());
  SetThreads(1);
}

}  // namespace
}  // namespace muster::kernels::transpose_test
