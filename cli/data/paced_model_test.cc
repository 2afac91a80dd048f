#include "cli/data/paced_model.h"

#include "gtest/gtest.h"

namespace muster::cli::paced_model_test {
namespace {

constexpr absl::Duration kStep = absl::Milliseconds(10);

absl::Duration At(int milliseconds) { return absl::Milliseconds(milliseconds); }

// The thread may take these batches at any later time.
TEST(PacedModelTest, NeverWaitsForBatchesThatWereReadInTime) {
  PacedModel model(kStep, /*begin=*/At(100));
  EXPECT_EQ(model.wait_share(), 0);
  for (int batch = 0; batch < 50; ++batch) {
    EXPECT_EQ(model.ready(), At(100 + 10 * batch));
    model.Take(/*read_at=*/At(100 + 10 * batch));
  }
  EXPECT_EQ(model.batches(), 50);
  EXPECT_EQ(model.elapsed(), 50 * kStep);
  EXPECT_EQ(model.wait_share(), 0);
}

TEST(PacedModelTest, WaitsUntilABatchIsRead) {
  PacedModel model(kStep, /*begin=*/At(100));
  model.Take(/*read_at=*/At(105));
  EXPECT_EQ(model.ready(), At(115)) << "it computes after it waited";
  EXPECT_DOUBLE_EQ(model.wait_share(), 5.0 / 15);
  model.Take(/*read_at=*/At(110));
  model.Take(/*read_at=*/At(130));
  EXPECT_EQ(model.ready(), At(140));
  EXPECT_DOUBLE_EQ(model.wait_share(), 10.0 / 40);
}

TEST(PacedModelTest, AModelThatComputesInNoTimeIsAsFastAsTheReading) {
  PacedModel model(absl::ZeroDuration(), /*begin=*/At(0));
  model.Take(At(4));
  model.Take(At(3));  // the threads may end batches in another order
  model.Take(At(9));
  EXPECT_EQ(model.batches(), 3);
  EXPECT_EQ(model.elapsed(), At(9));
  EXPECT_EQ(model.wait_share(), 1);
}

}  // namespace
}  // namespace muster::cli::paced_model_test
