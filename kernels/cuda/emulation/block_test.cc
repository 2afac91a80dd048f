#include "kernels/cuda/emulation/block.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

namespace muster::kernels::cuda::emulation::block_test {
namespace {

constexpr unsigned kEveryLane = 0xffffffffu;

cudaError_t RunThreads(dim3 grid, dim3 block, const std::function<void()>& thread) {
  return RunGrid(grid, block, /*shared_bytes=*/0, thread);
}

TEST(BlockTest, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<int> runs(2 * 3 * 2 * 40 * 3, 0);
  ASSERT_EQ(RunThreads(dim3(2, 3, 2), dim3(40, 3),
                       [&] {
                         const unsigned block =
                             (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
                         ++runs[(block * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x];
                       }),
            cudaSuccess);
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
}

TEST(BlockTest, WritesBeforeABarrierAreVisibleAfterIt) {
  for (ThreadOrder order : {ThreadOrder::kAscending, ThreadOrder::kDescending}) {
    SetThreadOrder(order);
    std::vector<unsigned> shared(96), seen(96);
    ASSERT_EQ(RunThreads(1, 96,
                         [&] {
                           for (unsigned round = 0; round < 3; ++round) {
                             shared[threadIdx.x] = threadIdx.x + round;
                             __syncthreads();
                             seen[threadIdx.x] = shared[95 - threadIdx.x];
                             __syncthreads();
                           }
                         }),
              cudaSuccess);
    for (unsigned i = 0; i < 96; ++i) EXPECT_EQ(seen[i], 95 - i + 2);
  }
  SetThreadOrder(ThreadOrder::kAscending);
}

TEST(BlockTest, LanesExchangeWithinTheirWarpAndMask) {
  std::vector<int> sums(64), below(64);
  std::vector<unsigned> alike(64);
  ASSERT_EQ(RunThreads(1, 64,
                       [&] {
                         const int lane = threadIdx.x % 32;
                         int sum = threadIdx.x;
                         for (int step = 16; step > 0; step /= 2) {
                           sum += __shfl_xor_sync(kEveryLane, sum, step);
                         }
                         sums[threadIdx.x] = sum;
                         alike[threadIdx.x] = __match_any_sync(kEveryLane, lane % 3);
                         const unsigned own_half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
                         below[threadIdx.x] = __shfl_sync(own_half, lane, lane / 16 * 16);
                       }),
            cudaSuccess);
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(sums[i], i < 32 ? 496 : 496 + 32 * 32);
    EXPECT_EQ(alike[i] >> i % 32 % 3 & 1, 1u);
    EXPECT_EQ(alike[i], (0x49249249u << i % 32 % 3) & kEveryLane);
    EXPECT_EQ(below[i], i % 32 / 16 * 16);
  }
}

TEST(BlockTest, LaunchesBeyondADevicesLimitsAreRefused) {
  const auto nothing = [] {};
  EXPECT_EQ(RunThreads(0, 32, nothing), cudaErrorInvalidConfiguration);
  EXPECT_EQ(RunThreads(dim3(1, 65536), 32, nothing), cudaErrorInvalidConfiguration);
  EXPECT_EQ(RunThreads(1, 1025, nothing), cudaErrorInvalidConfiguration);
  EXPECT_EQ(RunGrid(1, 32, 228 * 1024, nothing), cudaErrorInvalidConfiguration);
}

TEST(BlockDeathTest, DetectsABarrierThatNotAllThreadsReach) {
  EXPECT_DEATH(static_cast<void>(RunThreads(1, 64,
                                            [] {
                                              if (threadIdx.x < 40) __syncthreads();
                                            })),
               "do not come to its barrier");
  EXPECT_DEATH(static_cast<void>(RunThreads(1, 64,
                                            [] {
                                              if (threadIdx.x % 32 < 31) __syncwarp();
                                            })),
               "do not come to its exchange");
}

}  // namespace
}  // namespace muster::kernels::cuda::emulation::block_test
