#include "kernels/slice.h"

#include <numeric>

#include "kernels/comparison.h"

namespace muster::kernels::slice_test {
namespace {

using Shape = std::vector<int64_t>;

// Returns the indices of element i of a tensor.
Shape IndicesOf(int64_t i, const Shape& shape) {
  Shape indices(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    indices[d] = i % shape[d];
    i /= shape[d];
  }
  return indices;
}

int64_t ElementAt(const Shape& indices, const Shape& shape) {
  int64_t i = 0;
  for (size_t d = 0; d < shape.size(); ++d) i = i * shape[d] + indices[d];
  return i;
}

struct Part {
  Shape tensor, starts, steps, sizes;
};

class SliceTest : public testing::TestWithParam<Part> {};

INSTANTIATE_TEST_SUITE_P(
    Parts, SliceTest,
    testing::Values(Part{{1}, {0}, {1}, {1}}, Part{{10}, {2}, {3}, {3}},
                    Part{{5, 6}, {1, 0}, {1, 1}, {3, 6}}, Part{{5, 6}, {0, 2}, {2, 1}, {3, 4}},
                    Part{{4, 5, 6}, {0, 4, 1}, {1, 1, 2}, {4, 1, 3}},
                    Part{{3, 200, 300}, {1, 10, 0}, {1, 1, 1}, {2, 150, 300}},
                    Part{{2, 1, 7, 1}, {0, 0, 6, 0}, {1, 1, 1, 1}, {2, 1, 1, 1}}));

template <typename T>
void ExpectSliced(const Part& part) {
  const int64_t n = Elements(part.sizes), all = Elements(part.tensor);
  std::vector<T> x(all), y(n, 0), dx(all, 7), expected_dx(all, 0);
  std::iota(x.begin(), x.end(), 1);

  Slice(y.data(), part.sizes, x.data(), part.tensor, part.starts, part.steps, sizeof(T));
  SliceGrad(dx.data(), part.tensor, y.data(), part.sizes, part.starts, part.steps, sizeof(T));

  for (int64_t i = 0; i < n; ++i) {
    Shape indices = IndicesOf(i, part.sizes);
    for (size_t d = 0; d < indices.size(); ++d) {
      indices[d] = part.starts[d] + indices[d] * part.steps[d];
    }
    const int64_t from = ElementAt(indices, part.tensor);
    ASSERT_EQ(y[i], x[from]);
    expected_dx[from] = y[i];
  }
  EXPECT_EQ(dx, expected_dx);
}

TEST_P(SliceTest, TakesEveryStepthElementAndItsDerivativePutsThemBack) {
  for (int threads : {1, 3}) {
    SetThreads(threads);
    ExpectSliced<uint32_t>(GetParam());
    ExpectSliced<uint16_t>(GetParam());
  }
  SetThreads(1);
}

struct Border {
  Shape inside, begins, ends;
};

class PadTest : public testing::TestWithParam<Border> {};

INSTANTIATE_TEST_SUITE_P(Borders, PadTest,
                         testing::Values(Border{{1}, {0}, {0}}, Border{{3}, {2}, {1}},
                                         Border{{2, 3}, {0, 1}, {0, 2}},
                                         Border{{2, 3, 4}, {1, 0, 2}, {0, 3, 1}},
                                         Border{{100, 300}, {5, 0}, {0, 0}}));

TEST_P(PadTest, TheBorderHasTheValueAndTheInsideComesBack) {
  const auto& [inside, begins, ends] = GetParam();
  Shape padded = inside;
  for (size_t d = 0; d < padded.size(); ++d) padded[d] += begins[d] + ends[d];
  const Floats x = Normals(Elements(inside), 1);
  Floats y(Elements(padded), NAN), back(x.size(), NAN);
  Floats expected(y.size(), -1.5f);
  for (size_t i = 0; i < x.size(); ++i) {
    Shape indices = IndicesOf(i, inside);
    for (size_t d = 0; d < indices.size(); ++d) indices[d] += begins[d];
    expected[ElementAt(indices, padded)] = x[i];
  }

  const float value = -1.5f;
  Pad(y.data(), x.data(), inside, begins, ends, &value, sizeof(float));
  EXPECT_EQ(y, expected);
  PadGrad(back.data(), inside, y.data(), begins, ends, sizeof(float));
  EXPECT_EQ(back, x);
}

}  // namespace
}  // namespace muster::kernels::slice_test
