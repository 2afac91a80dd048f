#include "services/coordinator/job/recovery/device_kinds.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::device_kinds_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DeviceKindsTest, ADifferenceHasOnlyTheWordsThatDiffer) {
  EXPECT_EQ(DifferenceOfKinds("w-3", "1 device, 4 threads, avx2, Xeon", "the job",
                              "1 device, 7 threads, avx512, Xeon"),
            "w-3 computes with 4 threads, avx2, the job with 7 threads, avx512: bits would differ");
  EXPECT_EQ(DifferenceOfKinds("w-3", "1 device, H200", "w-0", "1 device, H200, NCCL 22703"),
            "w-3 computes with 1 device, H200, w-0 with NCCL 22703: bits would differ")
      << "all words, because none is its own";
  EXPECT_EQ(DifferenceOfKinds("w-3", "7 threads", "w-0", "7 threads"), "");
  EXPECT_EQ(DifferenceOfKinds("w-3", "", "w-0", "7 threads"), "") << "unknown";
  EXPECT_EQ(DifferenceOfKinds("w-3", "7 threads", "w-0", ""), "");
}

TEST(DeviceKindsTest, TheKindThatTrainedLastWinsIfAWorkerHasIt) {
  const auto compare = [](const std::vector<std::string>& kinds, const std::string& trained) {
    v1::JobPlan plan;
    for (int i = 0; i < std::ssize(kinds); ++i)
      plan.add_workers()->set_member("w-" + std::to_string(i));
    JobMembers members;
    members.Enlist(plan, absl::UnixEpoch());
    for (int i = 0; i < std::ssize(kinds); ++i) {
      v1::JobReport report;
      report.set_device_kind(kinds[i]);
      members.Take(plan.workers(i).member(), &report, absl::UnixEpoch());
    }
    return CompareKinds(members, trained);
  };
  KindsOfWorkers kinds = compare({"old", "new", "old"}, "new");
  EXPECT_EQ(kinds.kind, "new");
  EXPECT_EQ(kinds.first, "w-1");
  EXPECT_THAT(kinds.others, ElementsAre("w-0", "w-2"));
  for (const char* trained : {"", "another"}) {
    kinds = compare({"", "old", "new"}, trained);
    EXPECT_EQ(kinds.kind, "old") << trained;
    EXPECT_EQ(kinds.first, "w-1");
    EXPECT_THAT(kinds.others, ElementsAre("w-2"));
  }
  EXPECT_THAT(compare({"old", "", "old"}, "new").others, IsEmpty()) << "one is not known";
  EXPECT_EQ(compare({"", ""}, "new").kind, "");
}

// A member may report any text.
TEST(DeviceKindsTest, AReportedKindIsKeptShortAndPrintable) {
  v1::JobPlan plan;
  plan.add_workers()->set_member("w-0");
  JobMembers members;
  members.Enlist(plan, absl::UnixEpoch());
  v1::JobReport report;
  report.set_device_kind(std::string(5000, '\n'));
  members.Take("w-0", &report, absl::UnixEpoch());
  const std::string& kind = members.at("w-0").device_kind;
  EXPECT_FALSE(kind.empty());
  EXPECT_LE(kind.size(), 4096);
  EXPECT_EQ(kind.find('\n'), std::string::npos);
  report.clear_device_kind();
  members.Take("w-0", &report, absl::UnixEpoch());
  EXPECT_FALSE(members.at("w-0").device_kind.empty()) << "a later report may leave it out";
  members.Enlist(plan, absl::UnixEpoch());
  EXPECT_EQ(members.at("w-0").device_kind, "") << "another process may have the name";
}

}  // namespace
}  // namespace muster::device_kinds_test
