// Counts large allocations through operator new: a run must not allocate tensors or scratch memory.
// Small ones are allowed: oneDNN's records of each call, and the partial sums of a reduction.
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "absl/status/status.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/model_memory.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/zoo/zoo.h"
#include "proto/muster/v1/job.pb.h"

namespace {
constexpr size_t kSmallBytes = 4096;
std::atomic<int64_t> large_allocations{0};
}  // namespace

// Not inlined: otherwise g++ reports the calls of malloc and free as a mismatched pair.
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (bytes > kSmallBytes) ++large_allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace muster::allocation_test {
namespace {

// The parameter is a zoo model in text form.
class AllocationTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(
    Zoo, AllocationTest,
    testing::Values(
        "name: 'linear'", "name: 'mlp'", "name: 'lenet'", "name: 'gpt'",
        "name: 'resnet50' args { fields { key: 'image' value { number_value: 32 } } }",
        "name: 'lstm_lm' args { fields { key: 'channels' value { number_value: 8 } } }"));

TEST_P(AllocationTest, ARunAllocatesNoTensor) {
  v1::ModelSpec spec;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(GetParam(), spec.mutable_zoo()));
  const v1::Graph graph = TrainingGraph(BuildModel(spec).value(), {}).value();
  const auto device = CreateDevice("cpu", 1).value();
  const ModelMemory memory(graph, *device, /*seed=*/1);
  const auto executor = CreateExecutor(graph, {.batch = 2,
                                               .device = device.get(),
                                               .parameters = memory.parameters(),
                                               .gradients = memory.gradients()})
                            .value();
  FillInputs(graph, /*ids_max=*/10, /*seed=*/2, *executor);
  const int64_t before = large_allocations;
  const absl::Status status = executor->Run({}, nullptr);
  const int64_t during = large_allocations - before;

  ASSERT_TRUE(status.ok());
  EXPECT_EQ(during, 0);
}

}  // namespace
}  // namespace muster::allocation_test
