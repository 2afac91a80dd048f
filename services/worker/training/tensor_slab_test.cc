#include "services/worker/training/tensor_slab.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/engine/backends/backends.h"
#include "lib/status/status.h"
#include "lib/transport/core/shared_slab.h"

namespace muster::tensor_slab_test {
namespace {

v1::Graph GraphOf(std::initializer_list<int64_t> parameters) {
  v1::Graph graph;
  for (int64_t elements : parameters) graph.add_parameters()->add_shape(elements);
  return graph;
}

absl::StatusOr<std::unique_ptr<TensorSlab>> MakeSlab(Device& device, const v1::Graph& graph) {
  std::vector<int64_t> elements;
  std::vector<int> order;
  for (int p = 0; p < graph.parameters_size(); ++p) {
    elements.push_back(graph.parameters(p).shape(0));
    order.push_back(p);
  }
  return TensorSlab::Create(device, graph, LayOutGradients(elements, order, /*world_size=*/1));
}

TEST(TensorSlabTest, HoldsEveryParameterAlignedAndZeroed) {
  const auto device = CreateDevice("cpu", 1).value();
  const auto slab = MakeSlab(*device, GraphOf({3, 100, 16}));
  ASSERT_TRUE(slab.ok()) << slab.status();

  ASSERT_EQ((*slab)->tensors().size(), 3);
  EXPECT_EQ((*slab)->tensors()[1].size(), 100);
  EXPECT_EQ((*slab)->memory().size(), 64 + 448 + 64);
  for (absl::Span<float> tensor : (*slab)->tensors()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % 64, 0);
    EXPECT_TRUE(std::all_of(tensor.begin(), tensor.end(), [](float x) { return x == 0; }));
  }
}

TEST(TensorSlabTest, IsSharedMemoryOnACpuDevice) {
  const auto device = CreateDevice("cpu", 1).value();
  const auto slab = MakeSlab(*device, GraphOf({1000, 7})).value();
  EXPECT_NE(SharedSlab::Find(slab->memory()), nullptr);
}

TEST(TensorSlabTest, IsSharedAndPageLockedOnAGpu) {
  const auto device = CreateDevice("cuda:0", 1);
  if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status().message();
  ASSERT_TRUE(device.ok()) << device.status();
  const auto slab = MakeSlab(**device, GraphOf({1000, 7}));
  ASSERT_TRUE(slab.ok()) << slab.status();
  EXPECT_NE(SharedSlab::Find((*slab)->memory()), nullptr);
  EXPECT_FALSE((*device)->PageLock((*slab)->memory()).ok()) << "it is not page-locked yet";
}

TEST(TensorSlabTest, RejectsParametersThatExceedMemory) {
  const auto device = CreateDevice("cpu", 1).value();
  const auto slab = MakeSlab(*device, GraphOf({int64_t{1} << 40, int64_t{1} << 40}));

  EXPECT_TRUE(absl::IsResourceExhausted(slab.status())) << slab.status();
  EXPECT_EQ(ReasonOf(slab.status()), "MEMORY_EXHAUSTED");
  EXPECT_TRUE(absl::StrContains(slab.status().message(), absl::StrCat(int64_t{1} << 43, " bytes")))
      << slab.status();
}

}  // namespace
}  // namespace muster::tensor_slab_test
