#include "kernels/indexed_elements.h"

#include "kernels/comparison.h"

namespace muster::kernels::indexed_elements_test {
namespace {

struct IndexedShape {
  std::vector<int64_t> tensor;
  std::vector<int64_t> index;
  int64_t axis;
};

class IndexedElementsTest : public testing::TestWithParam<IndexedShape> {
 protected:
  std::vector<int32_t> Indices() const {
    std::vector<int32_t> index = RandomIds(elements_.indices(), 2 * elements_.size(), 1);
    for (int32_t& i : index) i -= elements_.size();
    return index;
  }

  // Returns the element of the tensor that element `at` of the index names.
  int64_t SourceOf(int64_t at) const {
    int64_t source = 0, stride = 1, rest = at;
    for (int64_t d = std::ssize(shape_.tensor) - 1; d >= 0; --d) {
      int64_t place = rest % shape_.index[d];
      rest /= shape_.index[d];
      if (d == shape_.axis) place = (index_[at] + shape_.tensor[d]) % shape_.tensor[d];
      source += place * stride;
      stride *= shape_.tensor[d];
    }
    return source;
  }

  const IndexedShape shape_ = GetParam();
  const IndexedElements elements_{shape_.tensor, shape_.index, shape_.axis};
  const std::vector<int32_t> index_ = Indices();
};

INSTANTIATE_TEST_SUITE_P(OddSizes, IndexedElementsTest,
                         testing::Values(IndexedShape{{1}, {1}, 0}, IndexedShape{{7}, {40}, 0},
                                         IndexedShape{{5, 3}, {9, 2}, 0},
                                         IndexedShape{{5, 3}, {4, 8}, 1},
                                         // Neighbouring dimensions that can be merged, or not.
                                         IndexedShape{{4, 3, 6, 5}, {4, 3, 2, 5}, 2},
                                         IndexedShape{{4, 5, 6}, {3, 2, 7}, 2},
                                         IndexedShape{{4, 3, 6, 5, 2}, {2, 3, 7, 4, 2}, 2},
                                         IndexedShape{{90, 70, 11}, {80, 70, 13}, 2},
                                         IndexedShape{{3, 200, 130}, {3, 60, 130}, 1}));

TEST_P(IndexedElementsTest, GathersByPositiveAndNegativeIndex) {
  const Floats x = Normals(elements_.tensor_elements(), 2);
  Floats y(index_.size(), NAN);
  GatherElements(y.data(), x.data(), index_.data(), elements_, 4);
  for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], x[SourceOf(i)]);

  std::vector<uint16_t> narrow(x.size()), taken(y.size());
  for (size_t i = 0; i < narrow.size(); ++i) narrow[i] = i;
  GatherElements(taken.data(), narrow.data(), index_.data(), elements_, 2);
  for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(taken[i], narrow[SourceOf(i)]);
}

TEST_P(IndexedElementsTest, GradientsAreSummedByIndexOnAnyThreads) {
  const Floats dy = Normals(index_.size(), 2);
  std::vector<double> expected(elements_.tensor_elements(), 0.0);
  for (size_t i = 0; i < dy.size(); ++i) expected[SourceOf(i)] += dy[i];
  Floats dx(expected.size(), NAN);
  GatherElementsGrad(dx.data(), dy.data(), index_.data(), elements_);
  ExpectClose(dx, expected, elements_.length());
  ExpectSameOnAnyThreads([&] {
    GatherElementsGrad(dx.data(), dy.data(), index_.data(), elements_);
    return dx;
  });
}

TEST_P(IndexedElementsTest, TheLastUpdateOfAnElementReplacesItAndTakesItsGradient) {
  const Floats data = Normals(elements_.tensor_elements(), 2), updates = Normals(index_.size(), 3);
  Floats expected = data;
  std::vector<int64_t> last(data.size(), -1);
  for (int64_t i = 0; i < std::ssize(index_); ++i) {
    expected[SourceOf(i)] = updates[i];
    last[SourceOf(i)] = i;
  }
  Floats y(data.size(), NAN);
  ScatterElements(y.data(), data.data(), index_.data(), updates.data(), elements_);
  EXPECT_EQ(y, expected);

  const Floats dy = Normals(data.size(), 4);
  Floats ddata(data.size(), NAN), dupdates(updates.size(), NAN);
  std::vector<int64_t> scratch(data.size());
  ScatterElementsGradData(ddata.data(), dy.data(), index_.data(), elements_);
  ScatterElementsGradUpdates(dupdates.data(), dy.data(), index_.data(), elements_, scratch.data());
  for (size_t i = 0; i < ddata.size(); ++i) ASSERT_EQ(ddata[i], last[i] < 0 ? dy[i] : 0);
  for (int64_t i = 0; i < std::ssize(index_); ++i) {
    ASSERT_EQ(dupdates[i], last[SourceOf(i)] == i ? dy[SourceOf(i)] : 0);
  }
}

TEST_P(IndexedElementsTest, UpdatesAreAddedOnAnyThreads) {
  const Floats data = Normals(elements_.tensor_elements(), 2), updates = Normals(index_.size(), 3);
  std::vector<double> expected = Wide(data);
  std::vector<int32_t> counted(data.size(), 7), counts(data.size()), ones(index_.size(), 1);
  for (size_t i = 0; i < updates.size(); ++i) {
    expected[SourceOf(i)] += updates[i];
    ++counted[SourceOf(i)];
  }
  Floats y(data.size(), NAN);
  ExpectSameOnAnyThreads([&] {
    ScatterElementsAdd(y.data(), data.data(), index_.data(), updates.data(), elements_);
    return y;
  });
  ExpectClose(y, expected, elements_.length());
  const std::vector<int32_t> sevens(data.size(), 7);
  ScatterElementsAdd(counts.data(), sevens.data(), index_.data(), ones.data(), elements_);
  EXPECT_EQ(counts, counted);
}

}  // namespace
}  // namespace muster::kernels::indexed_elements_test
