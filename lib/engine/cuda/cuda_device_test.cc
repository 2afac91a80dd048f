#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/device.h"

namespace muster::cuda_device_test {
namespace {

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = CreateDevice("cuda:0", 1);
    if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status().message();
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  std::unique_ptr<Device> device_;
};

TEST_F(CudaDeviceTest, LocksPagesOfExistingMemoryUntilTheHandleIsDestroyed) {
  constexpr size_t kBytes = 1 << 20;
  alignas(4096) static std::byte memory[kBytes];

  auto lock = device_->PageLock(memory);
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_FALSE(device_->PageLock(memory).ok()) << "the pages are locked already";

  lock->reset();
  EXPECT_TRUE(device_->PageLock(memory).ok())
      << "the pages were released, and an error does not persist";
  EXPECT_TRUE(device_->PageLock({}).ok());
}

}  // namespace
}  // namespace muster::cuda_device_test
