#include "lib/status/field_fault.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/status/status.h"

namespace muster::field_fault_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(FieldFaultTest, AnErrorOfOneFieldKeepsItsCodeAndReasonAndNamesTheField) {
  const absl::Status gone =
      WithReason(absl::NotFoundError("/nope: no such file"), "DATA_NOT_FOUND");

  const absl::Status status = AtField(gone, "data.text.path");

  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(ReasonOf(status), "DATA_NOT_FOUND");
  EXPECT_EQ(status.message(), "data.text.path: /nope: no such file");
  EXPECT_THAT(FaultsOf(status), ElementsAre(FieldFault{"data.text.path", "/nope: no such file"}));
}

TEST(FieldFaultTest, OtherErrorsHaveNoFaultsEvenIfTheyLookSimilar) {
  EXPECT_THAT(FaultsOf(absl::InvalidArgumentError("data.text.path: /nope")), IsEmpty());
  EXPECT_THAT(FaultsOf(absl::OkStatus()), IsEmpty());
  EXPECT_TRUE(AtField(absl::OkStatus(), "data").ok());
}

}  // namespace
}  // namespace muster::field_fault_test
