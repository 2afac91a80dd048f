#include <sched.h>

#include <cstddef>
#include <memory>
#include <thread>
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

TEST_F(CudaDeviceTest, PlacedNearbyTheThreadKeepsSomeOfItsProcessors) {
  std::jthread([this] {
    cpu_set_t before, after, common;
    ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
    const absl::Status placed = device_->PlaceNearby();
    // A container may hide the machine's PCI devices, or all processors next to the GPU.
    if (absl::IsNotFound(placed) || absl::IsFailedPrecondition(placed)) {
      GTEST_SKIP() << placed.message();
    }
    ASSERT_TRUE(placed.ok()) << placed;
    ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
    CPU_AND(&common, &before, &after);
    EXPECT_TRUE(CPU_EQUAL(&common, &after));
    EXPECT_GT(CPU_COUNT(&after), 0);
  }).join();
}

}  // namespace
}  // namespace muster::cuda_device_test
