#include "services/worker/tensor_slab.h"

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/status/status.h"

namespace muster {
namespace {

v1::Graph GraphOf(std::initializer_list<int64_t> parameters) {
  v1::Graph graph;
  for (int64_t elements : parameters) graph.add_parameters()->add_shape(elements);
  return graph;
}

TEST(TensorSlabTest, HoldsEveryParameterAlignedAndZeroed) {
  const auto device = Device::Create("cpu", 1).value();
  const auto slab = TensorSlab::Create(*device, GraphOf({3, 100, 16}));
  ASSERT_TRUE(slab.ok()) << slab.status();

  ASSERT_EQ((*slab)->tensors().size(), 3);
  EXPECT_EQ((*slab)->tensors()[1].size(), 100);
  EXPECT_EQ((*slab)->memory().size(), 64 + 448 + 64);
  for (absl::Span<float> tensor : (*slab)->tensors()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % 64, 0);
    EXPECT_TRUE(std::all_of(tensor.begin(), tensor.end(), [](float x) { return x == 0; }));
  }
}

TEST(TensorSlabTest, ParametersBeyondTheMachinesMemoryAreRefused) {
  const auto device = Device::Create("cpu", 1).value();
  const auto slab = TensorSlab::Create(*device, GraphOf({int64_t{1} << 40, int64_t{1} << 40}));

  EXPECT_TRUE(absl::IsResourceExhausted(slab.status())) << slab.status();
  EXPECT_EQ(ReasonOf(slab.status()), "MEMORY_EXHAUSTED");
  EXPECT_TRUE(absl::StrContains(slab.status().message(), absl::StrCat(int64_t{1} << 43, " bytes")))
      << slab.status();
}

}  // namespace
}  // namespace muster
