#include "kernels/embedding.h"

#include "kernels/comparison.h"

namespace muster::kernels::embedding_test {
namespace {

TEST(EmbeddingTest, RowsAreCopiedByIdAndTheirGradientsSummedById) {
  const EmbeddingShape shape{.rows = 37, .vocabulary = 11, .channels = 19};
  const Floats table = Normals(shape.vocabulary * shape.channels, 1);
  const Floats dy = Normals(shape.rows * shape.channels, 2);
  std::vector<int32_t> ids =
      RandomIds(shape.rows, shape.vocabulary - 1, 3);  // the last id is unused
  Floats y(dy.size(), NAN), dtable(table.size(), NAN);
  std::vector<double> expected(table.size(), 0.0);

  Embedding(y.data(), ids.data(), table.data(), shape);
  EmbeddingGrad(dtable.data(), dy.data(), ids.data(), shape);

  for (int64_t r = 0; r < shape.rows; ++r) {
    for (int64_t c = 0; c < shape.channels; ++c) {
      EXPECT_EQ(y[r * shape.channels + c], table[ids[r] * shape.channels + c]);
      expected[ids[r] * shape.channels + c] += dy[r * shape.channels + c];
    }
  }
  ExpectClose(dtable, expected, shape.rows);
  EXPECT_EQ(dtable.back(), 0.0f);
}

TEST(EmbeddingTest, APartOfTheTableGivesZerosForTheOtherRows) {
  const EmbeddingShape whole{.rows = 37, .vocabulary = 11, .channels = 19};
  const Floats table = Normals(whole.vocabulary * whole.channels, 1);
  const Floats dy = Normals(whole.rows * whole.channels, 2);
  const std::vector<int32_t> ids = RandomIds(whole.rows, whole.vocabulary, 3);
  Floats y(dy.size(), NAN), dtable(table.size(), NAN);
  Embedding(y.data(), ids.data(), table.data(), whole);
  EmbeddingGrad(dtable.data(), dy.data(), ids.data(), whole);

  Floats sum(dy.size(), 0), dparts;
  for (const auto& [first, end] : {std::pair(0, 4), std::pair(4, 11)}) {
    EmbeddingShape part = whole;
    part.vocabulary = end - first;
    part.first = first;
    Floats part_y(dy.size(), NAN), dpart(part.vocabulary * part.channels, NAN);
    Embedding(part_y.data(), ids.data(), &table[first * part.channels], part);
    EmbeddingGrad(dpart.data(), dy.data(), ids.data(), part);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part_y[i];
    dparts.insert(dparts.end(), dpart.begin(), dpart.end());
  }
  EXPECT_EQ(sum, y);
  EXPECT_EQ(dparts, dtable);
}

TEST(EmbeddingTest, TheFirstIdOutOfRangeIsFound) {
  const std::vector<int32_t> ids = {0, 4, 5, -1};
  EXPECT_EQ(FirstOutOfRange(ids.data(), 4, 0, 6), 3);
  EXPECT_EQ(FirstOutOfRange(ids.data(), 4, -1, 5), 2);
  EXPECT_EQ(FirstOutOfRange(ids.data(), 4, -1, 6), -1);
  EXPECT_EQ(FirstOutOfRange(ids.data(), 0, 0, 0), -1);
}

}  // namespace
}  // namespace muster::kernels::embedding_test
