#include "services/coordinator/scheduling/job_conditions.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/coordinator/common/proto_time.h"

namespace muster::job_conditions_test {
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
          .reserved_for = 6};
}

TEST(JobConditionsTest, QueuedJobReportsItsNeedAndTheSupply) {
  v1::Job job = JobIn(v1::QUEUED, "SUBMITTED");
  AddWhatFollows(PhaseOf(job), WaitFor(WaitCause::kWorkers), job);
  EXPECT_EQ(job.waiting().reason(), "WAITS_FOR_WORKERS");
  EXPECT_THAT(job.waiting().message(), HasSubstr("needs 4 workers, 1 free of the 3 attached"));
  EXPECT_EQ(job.waiting().workers_free(), 1);
  EXPECT_EQ(job.waiting().position(), 2);
  EXPECT_EQ(job.waiting().queue_length(), 5);
  EXPECT_EQ(job.conditions(0).reason(), "WAITS_FOR_WORKERS");
  EXPECT_THAT(TrueConditions(job), ElementsAre());

  AddWhatFollows(PhaseOf(job), WaitFor(WaitCause::kPs), job);
  EXPECT_EQ(job.waiting().reason(), "WAITS_FOR_PS");
  EXPECT_THAT(job.waiting().message(), HasSubstr("needs 2 ps, 1 attached"));
  AddWhatFollows(PhaseOf(job), WaitFor(WaitCause::kItsTurn), job);
  EXPECT_THAT(job.waiting().message(), HasSubstr("reserved for job number 6"));
  AddWhatFollows(PhaseOf(job), WaitFor(WaitCause::kGathers), job);
  EXPECT_EQ(job.waiting().reason(), "STARTING");
  AddWhatFollows(PhaseOf(job), std::nullopt, job);
  EXPECT_EQ(job.waiting().reason(), "STARTING");
  EXPECT_EQ(job.waiting().workers_needed(), 0) << "the earlier wait is cleared";
}

TEST(JobConditionsTest, ExactMemoryMessageOfTheRecordIsReported) {
  v1::Job job = JobIn(v1::QUEUED, "WAITS_FOR_MEMORY");
  job.set_message("needs 1,234 bytes");
  AddWhatFollows(PhaseOf(job), WaitFor(WaitCause::kPsMemory), job);
  EXPECT_EQ(job.waiting().message(), "needs 1,234 bytes");
}

TEST(JobConditionsTest, ConditionsFollowTheState) {
  v1::Job running = JobIn(v1::RUNNING, "STARTED");
  running.set_checkpoint("jobs/a-1/checkpoints/10");
  AddWhatFollows(PhaseOf(running), std::nullopt, running);
  EXPECT_FALSE(running.has_waiting());
  EXPECT_THAT(TrueConditions(running), ElementsAre("SCHEDULED", "RUNNING", "CHECKPOINTED"));

  v1::Job recovering = JobIn(v1::RECOVERING, "WAITS_FOR_MEMBERS");
  AddWhatFollows(PhaseOf(recovering), std::nullopt, recovering);
  EXPECT_EQ(recovering.waiting().reason(), "WAITS_FOR_MEMBERS");
  EXPECT_EQ(recovering.waiting().position(), 0);

  v1::Job stopping = JobIn(v1::RECOVERING, "MEMBER_LOST");
  AddWhatFollows(PhaseOf(stopping), std::nullopt, stopping,
                 {"ps-0", "worker-0", "worker-1", "worker-2", "worker-3"});
  EXPECT_EQ(stopping.waiting().message(),
            "waits until ps-0, worker-0, worker-1, worker-2 and 1 more stop; then all members get "
            "the next plan");
  AddWhatFollows(PhaseOf(stopping), std::nullopt, stopping);
  EXPECT_EQ(stopping.waiting().message(), "all members have stopped; the next plan is being made");

  v1::Job cancelled = JobIn(v1::CANCELLED, "CANCELLED");
  AddWhatFollows(PhaseOf(cancelled), WaitFor(WaitCause::kWorkers), cancelled);
  EXPECT_FALSE(cancelled.has_waiting());
  EXPECT_THAT(TrueConditions(cancelled), ElementsAre("FAILED"));
  EXPECT_EQ(cancelled.conditions(5).reason(), "CANCELLED");
}

// Returns the transition time of condition JOB_CONDITION_TYPE_`name`, or nullopt if unknown.
std::optional<absl::Time> TimeOf(const v1::Job& job, const std::string& name) {
  for (const v1::JobCondition& condition : job.conditions()) {
    if (v1::JobConditionType_Name(condition.type()).substr(19) != name) continue;
    if (!condition.has_last_transition_time()) return std::nullopt;
    return FromProto(condition.last_transition_time());
  }
  return std::nullopt;
}

TEST(JobConditionsTest, TransitionTimeIsTheLastChangeOfTheStatus) {
  const absl::Time submitted = absl::FromUnixSeconds(100), begun = submitted + absl::Seconds(5);
  v1::Job job = JobIn(v1::QUEUED, "SUBMITTED");
  UpdateConditions(submitted, job);
  EXPECT_EQ(TimeOf(job, "SCHEDULED"), submitted) << "the time from which it has no members";

  job.set_state(v1::PREPARING);
  UpdateConditions(begun, job);
  job.set_state(v1::RUNNING);
  job.set_checkpoint("jobs/a-1/checkpoints/10");
  UpdateConditions(begun + absl::Seconds(1), job);
  job.set_checkpoint("jobs/a-1/checkpoints/20");
  job.set_message("another");
  UpdateConditions(begun + absl::Seconds(9), job);
  AddWhatFollows(PhaseOf(job), std::nullopt, job);

  EXPECT_EQ(TimeOf(job, "SCHEDULED"), begun);
  EXPECT_EQ(TimeOf(job, "RUNNING"), begun + absl::Seconds(1));
  EXPECT_EQ(TimeOf(job, "CHECKPOINTED"), begun + absl::Seconds(1));
  EXPECT_EQ(TimeOf(job, "FAILED"), submitted);
  EXPECT_EQ(job.conditions(1).message(), "another");

  job.set_state(v1::RECOVERING);
  UpdateConditions(begun + absl::Seconds(12), job);
  EXPECT_EQ(TimeOf(job, "RUNNING"), begun + absl::Seconds(12));
}

TEST(JobConditionsTest, UnknownTransitionTimeStaysUnsetUntilTheStatusChanges) {
  v1::Job job = JobIn(v1::RUNNING, "STARTED");
  AddWhatFollows(PhaseOf(job), std::nullopt, job);
  EXPECT_THAT(TrueConditions(job), ElementsAre("SCHEDULED", "RUNNING"));
  EXPECT_EQ(TimeOf(job, "RUNNING"), std::nullopt);

  job.set_state(v1::SUCCEEDED);
  UpdateConditions(absl::FromUnixSeconds(7), job);
  EXPECT_EQ(TimeOf(job, "SUCCEEDED"), absl::FromUnixSeconds(7));
  EXPECT_EQ(TimeOf(job, "FAILED"), std::nullopt);
}

}  // namespace
}  // namespace muster::job_conditions_test
