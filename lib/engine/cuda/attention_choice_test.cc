// Tests whether cuDNN's attention agrees with our own kernels. ChooseAttention() compares them and
// returns null if they differ. Skips without a GPU.
#include "lib/engine/cuda/attention_choice.h"

#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/libraries.h"
#include "lib/engine/cuda/cuda_handles.h"

namespace muster::attention_choice_test {
namespace {

using kernels::cuda::AttentionShape;
using kernels::cuda::Type;

AttentionShape SelfAttention(int64_t batch, int64_t tokens, int64_t heads, int64_t head,
                             bool causal, Type type) {
  const int64_t row = 3 * heads * head;
  return {.batch = batch,
          .queries = tokens,
          .keys = tokens,
          .heads = heads,
          .head_channels = head,
          .head_values = head,
          .q_row = row,
          .k_row = row,
          .v_row = row,
          .causal = causal,
          .scale = 0.125f,
          .type = type};
}

// q, k and v in separate tensors, more keys than queries, values wider than keys.
AttentionShape CrossAttention(Type type) {
  return {.batch = 2,
          .queries = 128,
          .keys = 384,
          .heads = 3,
          .head_channels = 32,
          .head_values = 64,
          .q_row = 96,
          .k_row = 96,
          .v_row = 192,
          .causal = false,
          .scale = 0.2f,
          .type = type};
}

class AttentionChoiceTest : public testing::TestWithParam<AttentionShape> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU";
    ASSERT_EQ(kernels::cuda::LoadLibraries(), nullptr) << kernels::cuda::LoadLibraries();
    auto stream = CreateCudaStream();
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
    cudnnHandle_t cudnn;
    ASSERT_EQ(cudnnCreate(&cudnn), CUDNN_STATUS_SUCCESS);
    cudnn_.reset(cudnn);
    ASSERT_EQ(cudnnSetStream(cudnn, stream_.get()), CUDNN_STATUS_SUCCESS);
  }

  // Returns whether cuDNN is tried on this GPU and with this version of cuDNN.
  bool IsAsked() const {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return false;
    return kernels::cuda::WhyNotFused(GetParam(), static_cast<int64_t>(cudnnGetVersion()),
                                      10 * properties.major + properties.minor) == nullptr;
  }

  std::shared_ptr<const FusedAttentions> Choose(const AttentionUse& use) {
    return ChooseAttention(use, cudnn_.get(), stream_.get());
  }

  CudaStream stream_;
  CudnnHandle cudnn_;
};

TEST_P(AttentionChoiceTest, CudnnAgreesWithTheOwnKernelsAndRepeatsToTheBit) {
  const auto chosen = Choose({.shape = GetParam(), .has_gradients = true, .deterministic = true});
  ASSERT_EQ(chosen != nullptr, IsAsked()) << "the log says why";
  if (chosen == nullptr) return;
  EXPECT_TRUE(chosen->has_backward());
}

// Either version may be the faster one.
TEST_P(AttentionChoiceTest, WithoutDeterminismEitherVersionMayBeChosen) {
  const auto chosen = Choose({.shape = GetParam(), .has_gradients = true, .deterministic = false});
  EXPECT_TRUE(chosen == nullptr || IsAsked());
  EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
}

TEST_P(AttentionChoiceTest, WithoutGradientsThereIsNoBackward) {
  const auto chosen = Choose({.shape = GetParam(), .deterministic = true});
  ASSERT_EQ(chosen != nullptr, IsAsked()) << "the log says why";
  if (chosen == nullptr) return;
  EXPECT_FALSE(chosen->has_backward());
}

// Masks of padding and of scores. One sample sees no key, and with causal attention some queries
// see none.
TEST_P(AttentionChoiceTest, CudnnTakesMasks) {
  const AttentionShape& shape = GetParam();
  for (const kernels::cuda::AttentionMaskShape& mask :
       {kernels::cuda::AttentionMaskShape{shape.batch, 1, 1},
        kernels::cuda::AttentionMaskShape{1, 1, shape.queries},
        kernels::cuda::AttentionMaskShape{shape.batch, shape.heads, shape.queries}}) {
    const auto chosen =
        Choose({.shape = shape, .mask = mask, .has_gradients = true, .deterministic = true});
    EXPECT_EQ(chosen != nullptr, IsAsked()) << "the log says why";
  }
}

TEST_P(AttentionChoiceTest, TheEnvironmentCanTurnCudnnOff) {
  setenv("MUSTER_ATTENTION", "own", /*overwrite=*/1);
  EXPECT_EQ(Choose({.shape = GetParam()}), nullptr);
  unsetenv("MUSTER_ATTENTION");
}

TEST_P(AttentionChoiceTest, RunsInACudaGraph) {
  const AttentionShape& shape = GetParam();
  const auto chosen = Choose({.shape = shape, .deterministic = true});
  if (chosen == nullptr) {
    ASSERT_FALSE(IsAsked());
    return;
  }
  const int64_t q = shape.batch * shape.queries * shape.q_row * 2;
  const int64_t k = shape.batch * shape.keys * shape.k_row * 2;
  const int64_t v = shape.batch * shape.keys * shape.v_row * 2;
  const int64_t y = shape.batch * shape.queries * shape.heads * shape.head_values * 2;
  const int64_t lse = shape.batch * shape.queries * shape.heads * 4;
  auto memory =
      AllocateCudaMemory(q + k + v + y + lse + chosen->forward_workspace_bytes() + 256, "a test");
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::byte* const base = memory->get();
  ASSERT_EQ(cudaMemsetAsync(base, 0, q + k + v, stream_.get()), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(base + q + k + v, 0xff, y + lse, stream_.get()), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  std::byte* const workspace = base + (q + k + v + y + lse + 255) / 256 * 256;
  EXPECT_EQ(chosen->Forward(base + q + k + v, reinterpret_cast<float*>(base + q + k + v + y),
                            {base, base + q, base + q + k, {}}, workspace, stream_.get()),
            nullptr);
  cudaGraph_t captured = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_.get(), &captured), cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, captured, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(captured), cudaSuccess);
  const CudaGraph graph(executable);
  ASSERT_EQ(cudaGraphLaunch(graph.get(), stream_.get()), cudaSuccess);
  std::vector<uint16_t> values(y / 2, 1);
  ASSERT_EQ(
      cudaMemcpyAsync(values.data(), base + q + k + v, y, cudaMemcpyDeviceToHost, stream_.get()),
      cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
  EXPECT_EQ(values, std::vector<uint16_t>(y / 2, 0));  // the attention averages zeros
}

std::string Name(const testing::TestParamInfo<AttentionShape>& info) {
  std::string name = kernels::cuda::ToString(info.param);
  for (char& c : name) c = c == ' ' || c == ',' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionChoiceTest,
                         testing::Values(SelfAttention(2, 1024, 12, 64, true, Type::kBf16),
                                         SelfAttention(3, 512, 16, 64, false, Type::kBf16),
                                         SelfAttention(2, 256, 3, 128, true, Type::kF16),
                                         SelfAttention(1, 128, 2, 8, true, Type::kF16),
                                         SelfAttention(1, 384, 5, 40, false, Type::kBf16),
                                         CrossAttention(Type::kBf16), CrossAttention(Type::kF16)),
                         Name);

}  // namespace
}  // namespace muster::attention_choice_test
