#include "services/coordinator/common/job_phase.h"

#include <string>

#include "gtest/gtest.h"

namespace muster::job_phase_test {
namespace {

constexpr JobPhase kAll[] = {JobPhase::kWorkersJoin,     JobPhase::kWorkersYield,
                             JobPhase::kWaitsForMembers, JobPhase::kWaitsForMemory,
                             JobPhase::kMemoryTooSmall,  JobPhase::kWaitsForCheckpoint};

v1::Job Stored(v1::JobState state, absl::string_view reason, const std::string& message = "") {
  v1::Job job;
  job.set_state(state);
  job.set_reason(std::string(reason));
  job.set_message(message);
  return job;
}

TEST(JobPhaseTest, AStoredJobHasThePhaseOfItsReason) {
  for (const JobPhase phase : kAll) {
    EXPECT_EQ(PhaseOf(Stored(v1::RECOVERING, ReasonOf(phase))), phase) << ReasonOf(phase);
    EXPECT_EQ(PhaseOf(Stored(v1::QUEUED, ReasonOf(phase))), phase);
    EXPECT_EQ(PhaseOf(Stored(v1::RUNNING, ReasonOf(phase))), JobPhase::kOther);
  }
  EXPECT_EQ(PhaseOf(Stored(v1::RECOVERING, "MEMBER_LOST")), JobPhase::kOther);
}

TEST(JobPhaseTest, AReasonThatBeginsWithWaitsForIsAWait) {
  for (const JobPhase phase : kAll) {
    EXPECT_EQ(Waits(phase), ReasonOf(phase).substr(0, 10) == "WAITS_FOR_") << ReasonOf(phase);
  }
  EXPECT_FALSE(Waits(JobPhase::kOther));
}

TEST(JobPhaseTest, TheCauseOfARecoveryStaysInTheMessageOfAWait) {
  const std::string cause = "worker-0 was lost; waits for nobody";
  const std::string message = WaitMessage(cause, "members: it has 1 worker");
  EXPECT_EQ(message, "worker-0 was lost; waits for nobody; waits for members: it has 1 worker");
  EXPECT_EQ(CauseOf(Stored(v1::RECOVERING, "WAITS_FOR_MEMBERS", message)), cause);
  EXPECT_EQ(CauseOf(Stored(v1::RECOVERING, "MEMBER_LOST", cause)), cause);
}

TEST(JobPhaseTest, KnowsTheCausesOfAStop) {
  v1::StopCause cause;
  EXPECT_EQ(KindOf(cause), StopKind::kOther);
  cause.set_reason(kYields);
  EXPECT_EQ(KindOf(cause), StopKind::kYields);
  cause.set_reason(kActiveDeadline);
  EXPECT_EQ(KindOf(cause), StopKind::kActiveDeadline);
}

}  // namespace
}  // namespace muster::job_phase_test
