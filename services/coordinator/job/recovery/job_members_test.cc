#include "services/coordinator/job/recovery/job_members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "lib/limits/limits.h"

namespace muster::job_members_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kStart = absl::FromUnixSeconds(1000);

class JobMembersTest : public ::testing::Test {
 protected:
  // A plan of two workers and a ps with two shards. The second shard owns no chunk.
  JobMembersTest() {
    v1::JobPlan plan;
    for (const char* name : {"w-0", "w-1"}) plan.add_workers()->set_member(name);
    for (int shard = 0; shard < 2; ++shard) plan.add_shards()->set_member("p-0");
    plan.add_chunks()->set_shard(0);
    members_.Enlist(plan, kStart);
  }

  void Report(const std::string& name, v1::MemberJobState state, int64_t next_step = 0) {
    v1::JobReport report;
    report.set_state(state);
    report.set_next_step(next_step);
    members_.Take(name, &report, now_);
  }

  absl::Time now_ = kStart;
  JobMembers members_;
};

TEST_F(JobMembersTest, EnlistsWorkersByRankAndPsByShardsThatOwnChunks) {
  EXPECT_THAT(members_.names(), ElementsAre("p-0", "w-0", "w-1"));
  EXPECT_EQ(members_.at("w-1").rank, 1);
  EXPECT_FALSE(members_.at("p-0").is_worker());
  EXPECT_THAT(members_.at("p-0").shards, ElementsAre(0));
  EXPECT_FALSE(members_.contains("w-2"));

  v1::JobPlan next;
  next.add_workers()->set_member("w-1");
  members_.Enlist(next, kStart);

  EXPECT_THAT(members_.names(), ElementsAre("w-1"));
  EXPECT_EQ(members_.at("w-1").rank, 0);
}

TEST_F(JobMembersTest, IsPreparedOnceAllMembersServeAndArePrepared) {
  Report("w-0", v1::MEMBER_PREPARED);
  Report("p-0", v1::MEMBER_RUNNING);
  Report("w-1", v1::MEMBER_PREPARING);
  EXPECT_FALSE(members_.AllPrepared());
  Report("w-1", v1::MEMBER_PREPARED);
  EXPECT_TRUE(members_.AllPrepared());

  members_.Take("w-0", nullptr, now_);

  EXPECT_FALSE(members_.AllPrepared()) << "it no longer serves the job";
  EXPECT_TRUE(members_.Silent().empty()) << "but it has reported";
}

TEST_F(JobMembersTest, WorkersHaveStoppedOnceAllAreAtOneStep) {
  Report("w-0", v1::MEMBER_PAUSED, 7);
  Report("w-1", v1::MEMBER_RUNNING, 7);
  EXPECT_EQ(members_.StoppedAt(/*total_steps=*/8), std::nullopt) << "one is running";
  Report("w-1", v1::MEMBER_PAUSED, 6);
  EXPECT_EQ(members_.StoppedAt(8), std::nullopt) << "one is a step behind";
  Report("w-1", v1::MEMBER_PAUSED, 7);
  EXPECT_EQ(members_.StoppedAt(8), 7);
  EXPECT_EQ(members_.NewestStep(), 7);

  for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_DONE, 8);

  EXPECT_TRUE(members_.AllWorkersDone());
  EXPECT_EQ(members_.StoppedAt(8), 8);
}

TEST_F(JobMembersTest, DescribesAMemberAndTheWorkersThatWaitForIt) {
  v1::JobPlan plan;
  for (const char* name : {"w-0", "w-1", "w-2"}) plan.add_workers()->set_member(name);
  for (const char* name : {"p-0", "p-1", "p-0"}) plan.add_shards()->set_member(name);
  for (int shard = 0; shard < 3; ++shard) plan.add_chunks()->set_shard(shard);
  plan.mutable_shards(1)->mutable_backup()->set_member("p-2");
  plan.mutable_shards(1)->mutable_backup()->set_host("node-7");
  plan.mutable_workers(2)->set_host("node-3");
  members_.Enlist(plan, kStart);
  EXPECT_EQ(members_.Describe("w-0"), "w-0 (worker, rank 0)");
  EXPECT_EQ(members_.Describe("w-2"), "w-2 (worker, rank 2, on node-3)");
  EXPECT_EQ(members_.Describe("p-0"), "p-0 (ps, shards 0, 2)");
  EXPECT_EQ(members_.Describe("p-1"), "p-1 (ps, shard 1)");
  EXPECT_EQ(members_.Describe("p-2"), "p-2 (ps, on node-7)") << "it has only a replica";

  EXPECT_EQ(members_.WhatIsAwaitedOf("w-0"), "") << "no worker runs";
  for (const char* name : {"w-0", "w-1", "w-2"}) Report(name, v1::MEMBER_RUNNING, 3);
  EXPECT_EQ(members_.WhatIsAwaitedOf("w-0"), "2 workers wait for its gradients");
  EXPECT_EQ(members_.WhatIsAwaitedOf("p-1"), "3 workers wait for its values");
  EXPECT_EQ(members_.WhatIsAwaitedOf("p-2"), "") << "workers get nothing from a replica";
  members_.SetLost("w-1");
  EXPECT_EQ(members_.WhatIsAwaitedOf("w-0"), "1 worker waits for its gradients");

  plan.mutable_spec()->mutable_sync()->set_mode(v1::ASP);
  members_.Enlist(plan, kStart);
  for (const char* name : {"w-0", "w-1", "w-2"}) Report(name, v1::MEMBER_RUNNING, 3);
  EXPECT_EQ(members_.WhatIsAwaitedOf("w-0"), "") << "no worker waits for another";
  EXPECT_EQ(members_.WhatIsAwaitedOf("p-1"), "3 workers wait for its values");
}

TEST_F(JobMembersTest, OrdersWorkersByRankAndPsByTheirShards) {
  v1::JobPlan plan;
  for (const char* name : {"w-1", "w-0"}) plan.add_workers()->set_member(name);
  for (const char* name : {"p-2", "p-1", "p-2"}) plan.add_shards()->set_member(name);
  plan.mutable_shards(0)->mutable_backup()->set_member("p-0");
  plan.mutable_shards(1)->mutable_backup()->set_member("p-2");
  members_.Enlist(plan, kStart);
  EXPECT_THAT(members_.workers(), ElementsAre("w-1", "w-0"));
  EXPECT_THAT(members_.ps(), ElementsAre("p-2", "p-1", "p-0"));

  plan.clear_shards();
  for (const char* name : {"w-1", "w-0"}) plan.add_shards()->set_member(name);
  members_.Enlist(plan, kStart);
  EXPECT_THAT(members_.ps(), IsEmpty()) << "with allreduce the workers have the shards";
}

TEST_F(JobMembersTest, TimingIsByRankOfTheWorkersThatReportedIt) {
  v1::JobPlan plan;
  for (const char* name : {"w-2", "w-0", "w-1"}) plan.add_workers()->set_member(name);
  members_.Enlist(plan, kStart);
  v1::JobReport report;
  report.set_state(v1::MEMBER_RUNNING);
  for (const char* name : {"w-0", "w-2"}) {
    report.mutable_timing()->set_steps(name == std::string("w-0") ? 10 : 20);
    report.add_links();
    members_.Take(name, &report, now_);
  }

  const std::vector<v1::MemberTiming> timing = members_.Timing();
  ASSERT_EQ(timing.size(), 2);
  EXPECT_EQ(timing[0].member(), "w-2");
  EXPECT_EQ(timing[0].timing().steps(), 20);
  EXPECT_EQ(timing[0].report_time().seconds(), absl::ToUnixSeconds(now_));
  EXPECT_EQ(timing[1].member(), "w-0");
  ASSERT_EQ(members_.Links().size(), 2);
  EXPECT_EQ(members_.Links()[0]->member(), "w-2");
}

TEST_F(JobMembersTest, LinksAreKeptUntilAReportHasNewOnes) {
  v1::JobReport report;
  report.set_state(v1::MEMBER_RUNNING);
  EXPECT_EQ(members_.Take("w-0", &report, now_).links, nullptr);
  for (int i = 0; i < limits::kLinksReportedMax + 3; ++i) {
    report.add_links()->set_peer(absl::StrCat("p-0/", i));
  }
  members_.Take("w-0", &report, now_);
  report.clear_links();

  const auto links = members_.Take("w-0", &report, now_ + absl::Seconds(1)).links;
  ASSERT_NE(links, nullptr) << "a report without links keeps the last ones";
  EXPECT_EQ(links->member(), "w-0");
  EXPECT_EQ(links->report_time().seconds(), absl::ToUnixSeconds(kStart));
  EXPECT_EQ(links->links_size(), limits::kLinksReportedMax) << "even if a member reports more";
  EXPECT_EQ(links->links_left_out(), 3);
  EXPECT_EQ(links->links(1).peer(), "p-0/1");

  report.add_links();
  report.set_links_left_out(5);
  EXPECT_EQ(members_.Take("w-0", &report, now_).links->links_left_out(), 5);
  EXPECT_EQ(links->links_left_out(), 3) << "a reader keeps the list that it has";
}

TEST_F(JobMembersTest, MemberWithoutProgressInPreparingHasStalled) {
  EXPECT_EQ(members_.FirstStalled(kStart - absl::Seconds(1)), nullptr);
  EXPECT_EQ(*members_.FirstStalled(kStart), "p-0") << "it has not reported";
  auto report = [&](const std::string& name, v1::MemberJobState state, uint64_t progress) {
    v1::JobReport report;
    report.set_state(state);
    report.set_prepare_progress(progress);
    members_.Take(name, &report, now_);
  };
  report("w-0", v1::MEMBER_PREPARED, 3);
  for (const char* name : {"p-0", "w-1"}) report(name, v1::MEMBER_PREPARING, 5);
  now_ += absl::Minutes(1);
  report("p-0", v1::MEMBER_PREPARING, 6);
  report("w-1", v1::MEMBER_PREPARING, 5);

  EXPECT_EQ(*members_.FirstStalled(kStart), "w-1");
  report("w-1", v1::MEMBER_PREPARED, 5);
  EXPECT_EQ(members_.FirstStalled(kStart), nullptr);
  EXPECT_EQ(*members_.FirstStalled(now_), "p-0");
}

}  // namespace
}  // namespace muster::job_members_test
