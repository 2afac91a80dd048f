#include "services/coordinator/job/recovery/exclusion_list.h"

#include <gtest/gtest.h>

namespace muster::exclusion_list_test {
namespace {

TEST(ExclusionListTest, LaterGenerationsMayAskAnExcludedMemberButKnowWhy) {
  ExclusionList list;
  EXPECT_EQ(list.Why("w-2"), nullptr);
  list.Exclude("w-2", "no such file");
  EXPECT_TRUE(list.ExcludesNow("w-2"));
  EXPECT_FALSE(list.ExcludesNow("w-3"));
  list.BeginGeneration();
  EXPECT_FALSE(list.ExcludesNow("w-2"));
  ASSERT_NE(list.Why("w-2"), nullptr) << "a later recovery may need the reason";
  EXPECT_EQ(*list.Why("w-2"), "no such file");
}

TEST(ExclusionListTest, ReadmitsOneMemberOrAll) {
  ExclusionList list;
  for (const char* name : {"w-2", "w-3"}) list.Exclude(name, "no such file");
  list.Readmit("w-2");
  EXPECT_FALSE(list.ExcludesNow("w-2")) << "it may warm up again at once";
  EXPECT_EQ(list.Why("w-2"), nullptr);
  EXPECT_TRUE(list.ExcludesNow("w-3"));
  list.ReadmitAll();
  EXPECT_EQ(list.Why("w-3"), nullptr);
}

TEST(ExclusionListTest, ExclusionEndsAtItsTime) {
  ExclusionList list;
  const absl::Time until = absl::UnixEpoch() + absl::Minutes(5);
  list.Exclude("w-2", "it did not halt", until);
  list.Exclude("w-3", "no such file");
  list.ReadmitInTime(until - absl::Seconds(1));
  EXPECT_NE(list.Why("w-2"), nullptr);
  list.ReadmitInTime(until);
  EXPECT_EQ(list.Why("w-2"), nullptr);
  EXPECT_NE(list.Why("w-3"), nullptr);
}

TEST(ExclusionListTest, ANewKindReadmitsThoseThatWereExcludedForTheOldOne) {
  ExclusionList list;
  list.Exclude("w-2", "no such file");
  list.ExcludeForKind("w-3", "it computes on an A100");
  EXPECT_FALSE(list.IsOfOtherKind("w-2"));
  EXPECT_TRUE(list.IsOfOtherKind("w-3"));
  list.ReadmitOtherKinds();
  EXPECT_NE(list.Why("w-2"), nullptr);
  EXPECT_EQ(list.Why("w-3"), nullptr);
}

}  // namespace
}  // namespace muster::exclusion_list_test
