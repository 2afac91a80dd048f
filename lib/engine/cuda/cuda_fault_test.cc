// Tests a GPU that fails in the middle of a run. It stays failed until the process ends, so this is
// a test program of its own. Skips without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "kernels/cuda/activation.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/executor.h"
#include "lib/engine/model_memory.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/zoo/zoo.h"
#include "lib/status/status.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cuda_fault_test {
namespace {

using ::testing::HasSubstr;

v1::Graph Training() {
  v1::ModelSpec spec;
  spec.mutable_zoo()->set_name("mlp");
  return TrainingGraph(BuildModel(spec).value(), {}).value();
}

// Launches a kernel that writes to unmapped memory, after a run has begun.
class Saboteur : public ParameterFlow {
 public:
  absl::Status AwaitParameter(int) override {
    kernels::cuda::Fill(reinterpret_cast<void*>(256), /*value=*/1, /*n=*/64,
                        kernels::cuda::Type::kF32, /*stream=*/nullptr);
    return absl::OkStatus();
  }
  absl::Status GradientReady(int) override { return absl::OkStatus(); }
};

TEST(CudaFaultTest, AFaultFailsTheRunAndLaterJobsButNotTheProcess) {
  auto device = CreateDevice("cuda:0", /*threads=*/1);
  if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status().message();
  ASSERT_TRUE(device.ok()) << device.status();
  const v1::Graph graph = Training();
  auto memory = std::make_unique<ModelMemory>(graph, **device, /*seed=*/1);
  auto executor = CreateExecutor(graph, {.batch = 4,
                                         .device = device->get(),
                                         .parameters = memory->parameters(),
                                         .gradients = memory->gradients()});
  ASSERT_TRUE(executor.ok()) << executor.status();

  Saboteur saboteur;
  const absl::Status failed = (*executor)->Run({}, &saboteur);
  EXPECT_TRUE(absl::IsInternal(failed)) << failed;
  EXPECT_EQ(ReasonOf(failed), "DEVICE_LOST");
  EXPECT_THAT(std::string(failed.message()), HasSubstr("node"));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("restart the worker"));

  EXPECT_EQ(ReasonOf((*executor)->Run({}, nullptr)), "DEVICE_LOST");
  executor->reset();
  memory.reset();
  device->reset();
  EXPECT_EQ(ReasonOf(CreateDevice("cuda:0", /*threads=*/1).status()), "DEVICE_LOST");
}

}  // namespace
}  // namespace muster::cuda_fault_test
