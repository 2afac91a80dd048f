#include "lib/status/status.h"

#include "gtest/gtest.h"

namespace muster::status_test {
namespace {

TEST(StatusTest, AnnotateKeepsTheReason) {
  absl::Status status = WithReason(absl::NotFoundError("no such file"), "DATA_NOT_FOUND");

  absl::Status annotated = Annotate(status, "data.text.path");

  EXPECT_EQ(annotated.message(), "data.text.path: no such file");
  EXPECT_EQ(annotated.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(annotated), "DATA_NOT_FOUND");
}

TEST(StatusTest, ReasonDefaultsToTheCanonicalCode) {
  EXPECT_EQ(ReasonOf(absl::DataLossError("x")), "DATA_LOSS");
  EXPECT_EQ(ReasonOf(absl::OkStatus()), "");
  EXPECT_TRUE(Annotate(absl::OkStatus(), "x").ok());
}

absl::StatusOr<int> Half(int n) {
  if (n % 2 != 0) return absl::InvalidArgumentError("odd");
  return n / 2;
}

absl::StatusOr<int> Quarter(int n) {
  ASSIGN_OR_RETURN(int half, Half(n));
  ASSIGN_OR_RETURN(int quarter, Half(half));
  return quarter;
}

TEST(StatusTest, AssignOrReturnStopsAtTheFirstError) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
}

}  // namespace
}  // namespace muster::status_test
