#include "lib/engine/cuda/device_faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lib/status/status.h"

namespace muster::device_faults_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

TEST(DeviceFaultsTest, TheErrorSaysWhereTheDeviceWasLostAndWhatToDo) {
  DeviceFaults faults;
  const absl::Status status = faults.Lose("cuda:1", "illegal address, in node 'qkv' (Linear)");
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_EQ(ReasonOf(status), "DEVICE_LOST");
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("cuda:1: illegal address, in node 'qkv' (Linear)"),
                                       HasSubstr("restart the worker to use cuda:1 again")));
}

TEST(DeviceFaultsTest, LaterJobsAreRefusedOnTheLostDeviceOnly) {
  DeviceFaults faults;
  EXPECT_TRUE(faults.Check("cuda:1").ok());
  faults.Lose("cuda:1", "illegal address").IgnoreError();
  EXPECT_TRUE(faults.Check("cuda:0").ok());
  const absl::Status refused = faults.Check("cuda:1");
  EXPECT_EQ(ReasonOf(refused), "DEVICE_LOST");
  EXPECT_THAT(MessageOf(refused),
              AllOf(HasSubstr("earlier job (illegal address)"), HasSubstr("restart the worker")));
}

// Later errors are consequences of the first.
TEST(DeviceFaultsTest, TheFirstErrorIsKept) {
  DeviceFaults faults;
  faults.Lose("cuda:0", "illegal address").IgnoreError();
  EXPECT_THAT(MessageOf(faults.Lose("cuda:0", "cannot free memory")),
              HasSubstr("cuda:0: illegal address;"));
  EXPECT_THAT(MessageOf(faults.Check("cuda:0")), HasSubstr("illegal address"));
}

class WhereItFailedTest : public testing::Test {
 protected:
  std::string After(int64_t finished_segments, int node = -1) const {
    return WhereItFailed({.nodes = nodes_,
                          .segment_ends = segment_ends_,
                          .finished_segments = finished_segments,
                          .node = node});
  }

  const std::vector<std::string> nodes_ = {"'a' (Linear)", "'b' (Relu)", "'c' (Softmax)",
                                           "'d' (Linear)"};
  const std::vector<int> segment_ends_ = {3, 4};
};

TEST_F(WhereItFailedTest, NamesTheNodesOfTheSegmentThatWasNotFinished) {
  EXPECT_THAT(After(0), AllOf(HasSubstr("in one of 3 nodes, from 'a' (Linear) to 'c' (Softmax)"),
                              HasSubstr("CUDA_LAUNCH_BLOCKING=1")));
  EXPECT_EQ(After(1), "in node 'd' (Linear)");
}

TEST_F(WhereItFailedTest, NamesTheNodeIfItIsKnown) {
  EXPECT_EQ(After(0, /*node=*/1), "in node 'b' (Relu)");
}

TEST_F(WhereItFailedTest, SaysWhenNoNodeWasRunning) {
  EXPECT_THAT(After(2), HasSubstr("after the last node"));
  EXPECT_EQ(WhereItFailed({}), "before the first node");
}

}  // namespace
}  // namespace muster::device_faults_test
