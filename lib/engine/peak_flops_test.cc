#include "lib/engine/peak_flops.h"

#include <optional>

#include "gtest/gtest.h"

namespace muster::peak_flops_test {
namespace {

TEST(PeakFlopsTest, ReturnsTheDatasheetValueOfTheGpuAndPrecision) {
  EXPECT_EQ(PeakFlops("NVIDIA H100 80GB HBM3, sm_90, 79 GiB", v1::BF16), 989.4e12);
  EXPECT_EQ(PeakFlops("NVIDIA H100 PCIe, sm_90, 79 GiB", v1::BF16), 756e12);
  EXPECT_EQ(PeakFlops("NVIDIA H200, sm_90, 139 GiB", v1::TF32), 494.7e12);
  EXPECT_EQ(PeakFlops("NVIDIA A100-SXM4-40GB, sm_80, 39 GiB", v1::FP32), 19.5e12);
  EXPECT_EQ(PeakFlops("NVIDIA A100-SXM4-40GB, sm_80, 39 GiB", v1::PRECISION_UNSPECIFIED), 19.5e12);
  EXPECT_EQ(PeakFlops("NVIDIA L4, sm_89, 22 GiB", v1::FP16), 121e12);
  EXPECT_EQ(PeakFlops("NVIDIA L40S, sm_89, 44 GiB", v1::FP16), 362e12);
}

TEST(PeakFlopsTest, ReturnsNulloptForUnknownDevicesAndPrecisions) {
  EXPECT_EQ(PeakFlops("2 threads, avx512", v1::FP32), std::nullopt);
  EXPECT_EQ(PeakFlops("NVIDIA GeForce RTX 9999, sm_99, 8 GiB", v1::BF16), std::nullopt);
  EXPECT_EQ(PeakFlops("Tesla V100-SXM2-16GB, sm_70, 15 GiB", v1::BF16), std::nullopt)
      << "a V100 has no units for bf16";
}

}  // namespace
}  // namespace muster::peak_flops_test
