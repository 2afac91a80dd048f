// main() of the tests that run on the device MUSTER_DEVICE. If the device is not available, only
// one test runs; it skips and says why.
#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/verification/instance.h"

namespace muster::verification {
namespace {

absl::Status Availability() { return CreateDevice(TestedDevice(), /*threads=*/1).status(); }

TEST(TestedDeviceTest, IsAvailable) {
  const absl::Status status = Availability();
  if (absl::IsUnavailable(status)) GTEST_SKIP() << status.message();
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace muster::verification

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  if (!muster::verification::Availability().ok()) {
    testing::GTEST_FLAG(filter) = "TestedDeviceTest.*";
  }
  return RUN_ALL_TESTS();
}
