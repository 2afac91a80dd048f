// Tests which attentions the kernels request, and that cuDNN has kernels for them. It prepares
// kernels for a GPU that is only described, with a fake driver. Results are compared on machines
// with a GPU (lib/engine/cuda/attention_choice.h).
#include "kernels/cuda/fused_attention.h"

#include <cudnn.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace muster::kernels::cuda::fused_attention_test {
namespace {

// GPT-2 with 1,024 tokens. q, k and v are in one tensor qkv[B, T, 3 H C].
constexpr AttentionShape kGpt2 = {.batch = 8,
                                  .queries = 1024,
                                  .keys = 1024,
                                  .heads = 12,
                                  .head_channels = 64,
                                  .head_values = 64,
                                  .q_row = 2304,
                                  .k_row = 2304,
                                  .v_row = 2304,
                                  .causal = true,
                                  .scale = 0.125f,
                                  .type = Type::kBf16};
constexpr AttentionShape kBertLarge = {.batch = 32,
                                       .queries = 512,
                                       .keys = 512,
                                       .heads = 16,
                                       .head_channels = 64,
                                       .head_values = 64,
                                       .q_row = 3072,
                                       .k_row = 3072,
                                       .v_row = 3072,
                                       .causal = false,
                                       .scale = 0.125f,
                                       .type = Type::kF16};
// Cross-attention with wide heads: twice as many keys as queries, and q, k and v in separate
// tensors.
constexpr AttentionShape kCross = {.batch = 1,
                                   .queries = 128,
                                   .keys = 256,
                                   .heads = 2,
                                   .head_channels = 128,
                                   .head_values = 128,
                                   .q_row = 256,
                                   .k_row = 256,
                                   .v_row = 256,
                                   .causal = false,
                                   .scale = 0.1f,
                                   .type = Type::kBf16};

constexpr char kH100[] =
    R"({"deviceName": "NVIDIA H100 80GB HBM3", "deviceVer": 900, "driverVer": 13000,
        "cudaDeviceId": 0, "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1,
        "multiProcessorCount": 132, "warpSize": 32, "totalGlobalMem": 85014478848,
        "l2CacheSize": 52428800, "smClockRateKHz": 1980000, "memClockRateKHz": 2619000,
        "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
        "reservedSharedMemoryPerBlock": 1024, "regsPerBlock": 65536, "maxRegistersPerSM": 65536,
        "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
        "maxBlockSize": [1024, 1024, 64], "maxGridSize": [2147483647, 65535, 65535]})";

TEST(WhyNotFusedTest, TheLibraryIsUsedOnlyForSupportedShapes) {
  EXPECT_EQ(WhyNotFused(kGpt2, 91900, 90), nullptr);
  EXPECT_EQ(WhyNotFused(kBertLarge, 91100, 80), nullptr);
  EXPECT_EQ(WhyNotFused(kCross, 91900, 90), nullptr);

  const auto refused_with = [](auto change) {
    AttentionShape shape = kGpt2;
    change(shape);
    const Failure why = WhyNotFused(shape, 91900, 90);
    return why == nullptr ? "" : std::string(why);
  };
  EXPECT_EQ(refused_with([](AttentionShape& s) { s.type = Type::kF32; }), "it is for bf16 and f16");
  EXPECT_NE(refused_with([](AttentionShape& s) { s.head_channels = 60; }), "");
  EXPECT_NE(refused_with([](AttentionShape& s) { s.head_values = 136; }), "");
  EXPECT_NE(refused_with([](AttentionShape& s) { s.queries = s.keys = 1000; }), "");
  EXPECT_NE(refused_with([](AttentionShape& s) { s.keys = 2048; }), "");
  EXPECT_NE(refused_with([](AttentionShape& s) { s.scale = 0; }), "");
  EXPECT_NE(WhyNotFused(kGpt2, /*version=*/91002, 90), nullptr);
  EXPECT_NE(WhyNotFused(kGpt2, 91900, /*capability=*/75), nullptr);
  EXPECT_NE(WhyNotFused(kGpt2, 91900, /*capability=*/100), nullptr);
}

TEST(WhyNotFusedTest, LogsNameTheShape) {
  EXPECT_EQ(ToString(kGpt2), "bf16 8x12x1024x64, causal");
  EXPECT_EQ(ToString(kCross), "bf16 1x2x128x128 on 256 keys");
}

class FusedAttentionTest : public testing::Test {
 protected:
  // Makes later calls of dlopen() for libcuda.so.1 find this library, which is then loaded by that
  // name.
  static void SetUpTestSuite() {
    void* driver = dlopen("kernels/cuda/libfake_driver.so", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(driver, nullptr) << dlerror();
    prepared_ = reinterpret_cast<decltype(prepared_)>(dlsym(driver, "PreparedKernel"));
  }

  void SetUp() override {
    if (Failure failure = LoadLibraries()) GTEST_SKIP() << failure;
    if (cudnnGetVersion() < 91100) GTEST_SKIP() << "cuDNN before 9.11 needs a GPU to prepare for";
    if (dlopen("libnvrtc.so.13", RTLD_NOW | RTLD_LOCAL) == nullptr) GTEST_SKIP() << dlerror();
  }

  // Returns null, and fails the test, if the library has no kernel for it.
  static std::unique_ptr<FusedAttention> Prepare(AttentionPart part, const AttentionShape& shape,
                                                 bool deterministic = true,
                                                 const AttentionMaskShape& mask = {}) {
    std::unique_ptr<FusedAttention> attention;
    const Failure failure =
        FusedAttention::Create(nullptr, part, shape, mask,
                               {.deterministic = deterministic, .absent_device = kH100}, attention);
    EXPECT_STREQ(failure, nullptr);
    return attention;
  }

  static inline bool (*prepared_)(const char*, const char*) = nullptr;
};

TEST_F(FusedAttentionTest, Gpt2sForwardIsOneKernelOfHopper) {
  const auto forward = Prepare(AttentionPart::kForward, kGpt2);
  ASSERT_NE(forward, nullptr);
  EXPECT_LE(forward->workspace_bytes(), 4096);
  EXPECT_TRUE(prepared_("sm90", "flash_fprop"));
}

TEST_F(FusedAttentionTest, Gpt2sBackwardKeepsTheSlopesOfScoresToBeDeterministic) {
  const auto backward = Prepare(AttentionPart::kBackward, kGpt2);
  ASSERT_NE(backward, nullptr);
  const int64_t slopes = 2 * 8 * 12 * 1024 * 1024;
  EXPECT_GE(backward->workspace_bytes(), slopes);
  EXPECT_LE(backward->workspace_bytes(), slopes + (1 << 20));
  EXPECT_TRUE(prepared_("sm90", "flash_bprop"));

  // If not deterministic, the workspace holds only dq in f32 and the sums of rows.
  const auto faster = Prepare(AttentionPart::kBackward, kGpt2, /*deterministic=*/false);
  ASSERT_NE(faster, nullptr);
  EXPECT_LE(faster->workspace_bytes(), 4 * 8 * 12 * 1024 * 65 + (1 << 20));
}

TEST_F(FusedAttentionTest, BertsAndWideHeadsHaveKernelsToo) {
  EXPECT_NE(Prepare(AttentionPart::kForward, kBertLarge), nullptr);
  EXPECT_NE(Prepare(AttentionPart::kBackward, kBertLarge), nullptr);
  EXPECT_NE(Prepare(AttentionPart::kForward, kCross), nullptr);
  EXPECT_NE(Prepare(AttentionPart::kBackward, kCross), nullptr);
}

// A padding mask (one row for all heads and queries), and a full mask of scores.
TEST_F(FusedAttentionTest, MasksHaveKernelsToo) {
  for (const AttentionMaskShape& mask :
       {AttentionMaskShape{32, 1, 1}, AttentionMaskShape{32, 16, 512},
        AttentionMaskShape{1, 1, 512}}) {
    for (const bool deterministic : {true, false}) {
      EXPECT_NE(Prepare(AttentionPart::kForward, kBertLarge, deterministic, mask), nullptr);
      EXPECT_NE(Prepare(AttentionPart::kBackward, kBertLarge, deterministic, mask), nullptr);
    }
  }
  EXPECT_TRUE(prepared_("sm90", "flash_bprop"));
}

TEST_F(FusedAttentionTest, RefusesMoreWorkspaceThanTheLimit) {
  AttentionShape large = kGpt2;
  large.batch = 128;  // 3 GiB for the gradients of scores
  std::unique_ptr<FusedAttention> attention;
  const Failure failure = FusedAttention::Create(nullptr, AttentionPart::kBackward, large, {},
                                                 {.absent_device = kH100}, attention);
  EXPECT_STREQ(failure, "it wants more than 2 GiB of workspace");
  EXPECT_EQ(attention, nullptr);
}

}  // namespace
}  // namespace muster::kernels::cuda::fused_attention_test
