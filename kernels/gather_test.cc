#include "kernels/gather.h"

#include "kernels/comparison.h"

namespace muster::kernels::gather_test {
namespace {

class GatherTest : public testing::TestWithParam<GatherShape> {
 protected:
  std::vector<int32_t> Indices() const {
    std::vector<int32_t> index = RandomIds(shape_.indices, 2 * shape_.size, 1);
    for (int32_t& i : index) i -= shape_.size;
    return index;
  }

  // Returns the position in the tensor of element i of the result.
  int64_t SourceOf(int64_t i) const {
    const int32_t index = index_[i / shape_.inner % shape_.indices];
    const int64_t slice = index < 0 ? index + shape_.size : index;
    const int64_t outer = i / shape_.inner / shape_.indices;
    return (outer * shape_.size + slice) * shape_.inner + i % shape_.inner;
  }

  const GatherShape shape_ = GetParam();
  const std::vector<int32_t> index_ = Indices();
  const int64_t from_ = shape_.outer * shape_.size * shape_.inner;
  const int64_t to_ = shape_.outer * shape_.indices * shape_.inner;
};

INSTANTIATE_TEST_SUITE_P(OddSizes, GatherTest,
                         testing::Values(GatherShape{1, 1, 1, 1}, GatherShape{1, 11, 19, 37},
                                         GatherShape{3, 5, 1, 2}, GatherShape{4, 7, 3, 50},
                                         GatherShape{1, 300, 130, 1000}));

TEST_P(GatherTest, SlicesAreTakenByIndexFromEitherEnd) {
  const Floats x = Normals(from_, 2);
  Floats y(to_, NAN);
  Gather(y.data(), x.data(), index_.data(), shape_, 4);
  for (int64_t i = 0; i < to_; ++i) ASSERT_EQ(y[i], x[SourceOf(i)]);

  std::vector<uint16_t> narrow(from_), taken(to_);
  for (int64_t i = 0; i < from_; ++i) narrow[i] = i;
  Gather(taken.data(), narrow.data(), index_.data(), shape_, 2);
  for (int64_t i = 0; i < to_; ++i) ASSERT_EQ(taken[i], narrow[SourceOf(i)]);
}

TEST_P(GatherTest, GradientsAreSummedByIndexOnAnyThreads) {
  const Floats dy = Normals(to_, 2);
  std::vector<double> expected(from_, 0.0);
  for (int64_t i = 0; i < to_; ++i) expected[SourceOf(i)] += dy[i];
  Floats dx(from_, NAN);
  GatherGrad(dx.data(), dy.data(), index_.data(), shape_);
  ExpectClose(dx, expected, shape_.indices);
  ExpectSameOnAnyThreads([&] {
    GatherGrad(dx.data(), dy.data(), index_.data(), shape_);
    return dx;
  });
}

}  // namespace
}  // namespace muster::kernels::gather_test
