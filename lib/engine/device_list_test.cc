#include "lib/engine/backends/device_list.h"

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::device_list_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<int> TwoGpus() { return 2; }
absl::StatusOr<int> NoGpu() { return absl::UnavailableError("no GPU is visible (no driver)"); }

std::vector<std::string> Names(absl::string_view text) {
  return ParseDeviceList(text, TwoGpus).value();
}

TEST(DeviceListTest, CountsCpuDevices) {
  EXPECT_THAT(Names("cpu"), ElementsAre("cpu:0"));
  EXPECT_THAT(Names("cpu:2"), ElementsAre("cpu:0", "cpu:1"));
  EXPECT_THAT(Names("cpu,cpu"), ElementsAre("cpu:0", "cpu:1"));
}

TEST(DeviceListTest, NamesGpus) {
  EXPECT_THAT(Names("cuda:all"), ElementsAre("cuda:0", "cuda:1"));
  EXPECT_THAT(Names("cuda"), ElementsAre("cuda:0"));
  EXPECT_THAT(Names("cuda:1"), ElementsAre("cuda:1"));
  EXPECT_THAT(Names("cuda:1,0"), ElementsAre("cuda:1", "cuda:0"));
  EXPECT_THAT(Names("cuda:0,cuda:1"), ElementsAre("cuda:0", "cuda:1"));
}

TEST(DeviceListTest, RefusesGpusAndSaysWhyIfNoneIsVisible) {
  for (const char* gpus : {"cuda", "cuda:0,1", "cuda:all"}) {
    const absl::Status status = ParseDeviceList(gpus, NoGpu).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("no GPU is visible (no driver)"));
    EXPECT_THAT(status.message(), HasSubstr("or compute on the CPU with cpu"));
  }
}

TEST(DeviceListTest, CountsGpusOnlyIfTheListNamesGpus) {
  const auto fail = []() -> absl::StatusOr<int> {
    ADD_FAILURE() << "asked for GPUs";
    return 0;
  };
  EXPECT_TRUE(ParseDeviceList("cpu:2", fail).ok());
}

TEST(DeviceListTest, RefusesOtherTextAndSaysWhatToWrite) {
  for (absl::string_view bad : {"", "gpu", "cpu:", "cpu:0", "cpu:-1", "cpu,", "cpu:65",
                                "cuda:", "cuda:x", "cuda:0,", "cuda:0,0", "cuda:2", "cuda:-1",
                                "cudax", "cpu,cuda:0", "cuda:0,cpu", "cuda,0", "cuda:all,0"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseDeviceList(bad, TwoGpus).status())) << bad;
  }
  EXPECT_THAT(ParseDeviceList("gpu", TwoGpus).status().message(),
              HasSubstr("write cuda:all, cuda:0,1, cpu"));
  EXPECT_THAT(ParseDeviceList("cuda:2", TwoGpus).status().message(),
              HasSubstr("'cuda:2' names GPU 2, but 2 are visible: write cuda:all"));
}

}  // namespace
}  // namespace muster::device_list_test
