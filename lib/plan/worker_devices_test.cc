#include "lib/plan/worker_devices.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace muster::worker_devices_test {
namespace {

google::protobuf::RepeatedPtrField<std::string> Worker(const std::vector<std::string>& devices) {
  return {devices.begin(), devices.end()};
}

TEST(WorkerDevicesTest, CpusAreDividedIntoGroupsAndGpusAreOneGroup) {
  const std::vector<std::string> cpus = {"cpu:0", "cpu:1", "cpu:2", "cpu:3"};
  const std::vector<std::string> gpus = {"cuda:0", "cuda:1", "cuda:2", "cuda:3"};
  const bool of_cpus[] = {true, true, true, false, true, false, false, false, false};
  for (int degree = 0; degree <= 8; ++degree) {
    EXPECT_EQ(CanShareModel(Worker(cpus), degree), of_cpus[degree]) << degree;
    EXPECT_EQ(CanShareModel(Worker(gpus), degree), degree <= 1 || degree == 4) << degree;
  }
  EXPECT_FALSE(CanShareModel(Worker({"cpu:0", "cuda:0"}), 2));
  EXPECT_FALSE(CanShareModel(Worker({}), 2));
  EXPECT_TRUE(CanShareModel(Worker({"cpu:0", "cuda:0"}), 1));
}

}  // namespace
}  // namespace muster::worker_devices_test
