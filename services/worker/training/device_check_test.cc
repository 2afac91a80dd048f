#include "services/worker/training/device_check.h"

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "lib/plan/numbers.h"
#include "lib/status/status.h"

namespace muster::device_check_test {
namespace {

v1::JobPlan Plan(int tensor_parallel) {
  v1::JobPlan plan;
  plan.mutable_spec()->mutable_resources()->set_tensor_parallel(tensor_parallel);
  plan.mutable_spec()->mutable_data()->set_batch_size(8);
  plan.add_workers()->set_samples(8);
  return plan;
}

absl::Status Check(int tensor_parallel, const UsedDevices& devices) {
  const v1::JobPlan plan = Plan(tensor_parallel);
  return CheckDevices(plan, DeviceGrid(plan, Rank(0), devices.cpus + devices.gpus), devices);
}

TEST(DeviceCheckTest, TheNumberOfDevicesIsAMultipleOfTheDegree) {
  const v1::JobPlan plan = Plan(2);
  for (const int devices : {2, 4, 6}) EXPECT_TRUE(CheckNumberOfDevices(plan, devices).ok());
  for (const int devices : {0, 1, 3}) {
    EXPECT_EQ(ReasonOf(CheckNumberOfDevices(plan, devices)), "TENSOR_PARALLEL_DEVICES") << devices;
  }
  EXPECT_TRUE(CheckNumberOfDevices(Plan(0), 3).ok());
  EXPECT_EQ(CheckNumberOfDevices(plan, 1).message(),
            "resources.tensor_parallel is 2 and this worker has 1 device: give it a multiple of "
            "that number (--devices=cpu:2), or as many GPUs");
}

TEST(DeviceCheckTest, RanksAreAlikeAndGpusAreOneReplica) {
  EXPECT_TRUE(Check(2, {.cpus = 4}).ok());
  EXPECT_TRUE(Check(2, {.gpus = 2, .gpus_meet = true}).ok());
  EXPECT_TRUE(Check(1, {.cpus = 1, .gpus = 1}).ok());
  const absl::Status mixed = Check(2, {.cpus = 1, .gpus = 1});
  EXPECT_EQ(ReasonOf(mixed), "TENSOR_PARALLEL_DEVICES");
  EXPECT_TRUE(absl::StrContains(mixed.message(), "CPUs alone or GPUs alone")) << mixed;
  const absl::Status replicas = Check(2, {.gpus = 4, .gpus_meet = true});
  EXPECT_EQ(ReasonOf(replicas), "TENSOR_PARALLEL_DEVICES");
  EXPECT_TRUE(absl::StrContains(replicas.message(), "one worker for each group")) << replicas;
}

TEST(DeviceCheckTest, SynchronisedNodesNeedDevicesThatMeet) {
  v1::JobPlan plan = Plan(1);
  v1::Node& node = *plan.mutable_graph()->add_nodes();
  (*node.mutable_attributes())["synchronised"].set_i(1);
  const DeviceGrid grid(plan, Rank(0), /*devices=*/2);
  EXPECT_TRUE(CheckDevices(plan, grid, {.cpus = 2}).ok());
  EXPECT_TRUE(CheckDevices(plan, grid, {.gpus = 2, .gpus_meet = true}).ok());
  EXPECT_EQ(ReasonOf(CheckDevices(plan, grid, {.gpus = 2})), "SYNCHRONISED_DEVICES");
  EXPECT_EQ(ReasonOf(CheckDevices(plan, grid, {.cpus = 1, .gpus = 1})), "SYNCHRONISED_DEVICES");
}

}  // namespace
}  // namespace muster::device_check_test
