// Counts operator new: a run must not allocate.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "absl/status/status.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "lib/engine/model_memory.h"
#include "lib/graph/autodiff.h"
#include "lib/graph/zoo.h"
#include "proto/muster/v1/job.pb.h"

namespace {
std::atomic<int64_t> allocations{0};
}

// Not inlined: g++ would take malloc and free for a mismatched pair.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace muster {
namespace {

class AllocationTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Zoo, AllocationTest, testing::Values("linear", "mlp", "lenet", "gpt"));

TEST_P(AllocationTest, ARunAfterTheFirstDoesNotAllocate) {
  v1::ModelSpec spec;
  spec.mutable_zoo()->set_name(GetParam());
  const v1::Graph graph = Differentiate(BuildModel(spec).value()).value();
  const auto device = Device::Create("cpu", 1).value();
  const ModelMemory memory(graph, *device, /*seed=*/1);
  const auto executor = Executor::Create(graph, {.batch = 2,
                                                 .device = device.get(),
                                                 .parameters = memory.parameters(),
                                                 .gradients = memory.gradients()})
                            .value();
  FillInputs(graph, /*ids_max=*/10, /*seed=*/2, *executor);
  ASSERT_TRUE(executor->Run(1.0f, nullptr).ok());  // oneDNN makes its code at the first use

  const int64_t before = allocations;
  const absl::Status status = executor->Run(1.0f, nullptr);
  const int64_t during = allocations - before;

  ASSERT_TRUE(status.ok());
  EXPECT_EQ(during, 0);
}

}  // namespace
}  // namespace muster
