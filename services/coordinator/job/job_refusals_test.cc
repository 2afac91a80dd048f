#include "services/coordinator/job/job_refusals.h"

#include <gtest/gtest.h>

#include <string>

#include "lib/status/status.h"

namespace muster::job_refusals_test {
namespace {

class JobRefusalsTest : public ::testing::Test {
 protected:
  JobRefusalsTest() {
    record_.set_name("jobs/net-1");
    record_.set_generation(3);
    record_.mutable_spec()->mutable_resources()->mutable_workers()->set_min(2);
    for (int shard = 0; shard < 2; ++shard) plan_.add_shards();
    header_.set_generation(3);
    In(v1::RUNNING);
  }

  void In(v1::JobState state, bool suspend_requested = false) {
    record_.set_state(state);
    record_.set_suspend_requested(suspend_requested);
  }
  std::string Shard(bool is_halted = false) const {
    return ReasonOf(CheckTakesShard(record_, &plan_, is_halted, header_));
  }

  v1::Job record_;
  v1::JobPlan plan_;
  v1::WriteShardHeader header_;
};

TEST_F(JobRefusalsTest, AnEndedJobRefusesEveryChange) {
  for (const auto state : {v1::SUCCEEDED, v1::FAILED, v1::CANCELLED}) {
    In(state);
    EXPECT_EQ(ReasonOf(CheckNotEnded(record_)), "JOB_FINISHED");
    EXPECT_EQ(ReasonOf(CheckResumes(record_, nullptr)), "JOB_FINISHED");
    EXPECT_EQ(ReasonOf(CheckMakesCheckpoint(record_)), "JOB_NOT_RUNNING");
    EXPECT_EQ(ReasonOf(CheckTakesShard(record_, nullptr, /*is_halted=*/false, header_)),
              "JOB_NOT_RUNNING");
  }
  EXPECT_EQ(CheckNotEnded(record_).message(), "net-1 has ended already (CANCELLED)");
  In(v1::SUSPENDED);
  EXPECT_TRUE(CheckNotEnded(record_).ok());
}

TEST_F(JobRefusalsTest, OtherResourcesNeedASuspendedJob) {
  v1::ResourceSpec own = record_.spec().resources(), other;
  other.mutable_workers()->set_min(4);
  In(v1::RUNNING, /*suspend_requested=*/true);
  EXPECT_EQ(ReasonOf(CheckResumes(record_, nullptr)), "JOB_SUSPENDING");
  for (const auto state : {v1::QUEUED, v1::PREPARING, v1::RUNNING, v1::RECOVERING}) {
    In(state);
    EXPECT_TRUE(CheckResumes(record_, nullptr).ok());
    EXPECT_TRUE(CheckResumes(record_, &own).ok());
    EXPECT_EQ(ReasonOf(CheckResumes(record_, &other)), "JOB_NOT_SUSPENDED");
  }
  EXPECT_EQ(CheckResumes(record_, &other).message(),
            "net-1 is RECOVERING: it takes other resources only while it is SUSPENDED");
  In(v1::SUSPENDED);
  EXPECT_TRUE(CheckResumes(record_, &other).ok());
}

TEST_F(JobRefusalsTest, OnlyARunningJobMakesACheckpointOnDemand) {
  EXPECT_TRUE(CheckMakesCheckpoint(record_).ok());
  In(v1::RUNNING, /*suspend_requested=*/true);
  EXPECT_EQ(ReasonOf(CheckMakesCheckpoint(record_)), "JOB_NOT_RUNNING");
  EXPECT_EQ(CheckMakesCheckpoint(record_).message(),
            "net-1 is not running (RUNNING, being suspended)");
  In(v1::RECOVERING);
  EXPECT_EQ(CheckMakesCheckpoint(record_).message(), "net-1 is not running (RECOVERING)");
}

TEST_F(JobRefusalsTest, TakesShardsOfTheRunningOrHaltedGeneration) {
  EXPECT_EQ(Shard(), "");
  In(v1::RECOVERING);
  EXPECT_EQ(Shard(), "JOB_NOT_RUNNING");
  EXPECT_EQ(Shard(/*is_halted=*/true), "");
  header_.set_generation(2);
  EXPECT_EQ(Shard(/*is_halted=*/true), "STALE_GENERATION");
}

TEST_F(JobRefusalsTest, TakesOnlyShardsOfThePlan) {
  for (const int shard : {-1, 2}) {
    header_.set_shard(shard);
    EXPECT_EQ(Shard(), "SHARD_NOT_FOUND");
  }
  header_.set_shard(1);
  EXPECT_EQ(Shard(), "");
}

}  // namespace
}  // namespace muster::job_refusals_test
