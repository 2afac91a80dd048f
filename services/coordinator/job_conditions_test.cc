#include "services/coordinator/job_conditions.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::Job JobIn(v1::JobState state, const std::string& reason) {
  v1::Job job;
  job.set_state(state);
  job.set_reason(reason);
  job.set_message("because");
  return job;
}

std::vector<std::string> TrueConditions(const v1::Job& job) {
  std::vector<std::string> names;
  for (const v1::JobCondition& condition : job.conditions()) {
    if (condition.status()) names.push_back(v1::JobConditionType_Name(condition.type()).substr(19));
  }
  return names;
}

Wait WaitFor(WaitCause cause) {
  return {.number = 7,
          .cause = cause,
          .position = 2,
          .queue_length = 5,
          .workers_needed = 4,
          .workers_free = 1,
          .workers_attached = 3,
          .ps_needed = 2,
          .ps_attached = 1,
          .kept_for = 6};
}

TEST(JobConditionsTest, AQueuedJobSaysWhatItNeedsAndWhatThereIs) {
  v1::Job job = JobIn(v1::QUEUED, "SUBMITTED");
  AddWhatFollows(WaitFor(WaitCause::kWorkers), job);
  EXPECT_EQ(job.waiting().reason(), "WAITS_FOR_WORKERS");
  EXPECT_THAT(job.waiting().message(), HasSubstr("needs 4 workers, 1 free of the 3 attached"));
  EXPECT_EQ(job.waiting().workers_free(), 1);
  EXPECT_EQ(job.waiting().position(), 2);
  EXPECT_EQ(job.waiting().queue_length(), 5);
  EXPECT_EQ(job.conditions(0).reason(), "WAITS_FOR_WORKERS");
  EXPECT_THAT(TrueConditions(job), ElementsAre());

  AddWhatFollows(WaitFor(WaitCause::kPs), job);
  EXPECT_EQ(job.waiting().reason(), "WAITS_FOR_PS");
  EXPECT_THAT(job.waiting().message(), HasSubstr("needs 2 ps, 1 attached"));
  AddWhatFollows(WaitFor(WaitCause::kItsTurn), job);
  EXPECT_THAT(job.waiting().message(), HasSubstr("kept for job number 6"));
  AddWhatFollows(WaitFor(WaitCause::kGathers), job);
  EXPECT_EQ(job.waiting().reason(), "STARTING");
  AddWhatFollows(std::nullopt, job);
  EXPECT_EQ(job.waiting().reason(), "STARTING");
  EXPECT_EQ(job.waiting().workers_needed(), 0) << "nothing is left of the look before";
}

TEST(JobConditionsTest, WhatIsKnownToTheByteIsTold) {
  v1::Job job = JobIn(v1::QUEUED, "WAITS_FOR_MEMORY");
  job.set_message("needs 1,234 bytes");
  AddWhatFollows(WaitFor(WaitCause::kPsMemory), job);
  EXPECT_EQ(job.waiting().message(), "needs 1,234 bytes");
}

TEST(JobConditionsTest, ConditionsFollowTheState) {
  v1::Job running = JobIn(v1::RUNNING, "STARTED");
  running.set_checkpoint("jobs/a-1/checkpoints/10");
  AddWhatFollows(std::nullopt, running);
  EXPECT_FALSE(running.has_waiting());
  EXPECT_THAT(TrueConditions(running), ElementsAre("SCHEDULED", "RUNNING", "CHECKPOINTED"));

  v1::Job recovering = JobIn(v1::RECOVERING, "WAITS_FOR_MEMBERS");
  AddWhatFollows(std::nullopt, recovering);
  EXPECT_EQ(recovering.waiting().reason(), "WAITS_FOR_MEMBERS");
  EXPECT_EQ(recovering.waiting().position(), 0);

  v1::Job cancelled = JobIn(v1::CANCELLED, "CANCELLED");
  AddWhatFollows(WaitFor(WaitCause::kWorkers), cancelled);
  EXPECT_FALSE(cancelled.has_waiting());
  EXPECT_THAT(TrueConditions(cancelled), ElementsAre("FAILED"));
  EXPECT_EQ(cancelled.conditions(5).reason(), "CANCELLED");
}

}  // namespace
}  // namespace muster
