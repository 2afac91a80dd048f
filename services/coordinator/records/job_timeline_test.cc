#include "services/coordinator/records/job_timeline.h"

#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::job_timeline_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using Span = JobTimeline::Span;

class JobTimelineTest : public ::testing::Test {
 protected:
  // Looks at the job after `seconds`. Returns the spans that ended, with their seconds.
  std::vector<std::pair<Span, int64_t>> After(int64_t seconds, const JobTimeline::Moment& moment) {
    now_ += absl::Seconds(seconds);
    std::vector<std::pair<Span, int64_t>> ended;
    timeline_.Look(moment, now_, [&](Span span, absl::Duration took) {
      ended.emplace_back(span, absl::ToInt64Seconds(took));
    });
    return ended;
  }

  JobTimeline timeline_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(JobTimelineTest, TheQueueEndsWhenMembersAreChosen) {
  EXPECT_THAT(After(0, {v1::QUEUED}), IsEmpty());
  EXPECT_THAT(After(3, {v1::QUEUED}), IsEmpty());
  EXPECT_THAT(After(4, {v1::PREPARING}), ElementsAre(Pair(Span::kQueue, 7)));
  EXPECT_THAT(After(1, {v1::RUNNING}), IsEmpty());
  EXPECT_THAT(After(1, {.state = v1::RUNNING, .step = 5}), IsEmpty()) << "nothing to recover from";
}

TEST_F(JobTimelineTest, ARecoveryHasFourPhases) {
  After(0, {.state = v1::RUNNING, .step = 10});
  EXPECT_THAT(After(1, {.state = v1::RECOVERING, .step = 10}), IsEmpty());
  EXPECT_THAT(After(2, {.state = v1::RECOVERING, .stopped = true, .step = 10}),
              ElementsAre(Pair(Span::kHalt, 2)));
  EXPECT_THAT(After(3, {.state = v1::PREPARING, .step = 10}), ElementsAre(Pair(Span::kPlan, 3)));
  EXPECT_THAT(After(4, {.state = v1::RUNNING, .step = 10}), ElementsAre(Pair(Span::kPrepare, 4)));
  EXPECT_THAT(After(5, {.state = v1::RUNNING, .step = 10}), IsEmpty());
  EXPECT_THAT(After(1, {.state = v1::RUNNING, .step = 11}),
              ElementsAre(Pair(Span::kFirstStep, 6), Pair(Span::kRecovery, 15)));
  EXPECT_THAT(After(1, {.state = v1::RUNNING, .step = 12}), IsEmpty());
}

TEST_F(JobTimelineTest, RecomputedStepsDoNotEndARecovery) {
  After(0, {.state = v1::RUNNING, .step = 10});
  After(0, {.state = v1::RECOVERING, .stopped = true, .step = 4});  // back to a checkpoint
  After(1, {.state = v1::PREPARING, .step = 4});
  After(1, {.state = v1::RUNNING, .step = 4});
  EXPECT_THAT(After(1, {.state = v1::RUNNING, .step = 9}), IsEmpty());
  EXPECT_THAT(After(1, {.state = v1::RUNNING, .step = 11}),
              ElementsAre(Pair(Span::kFirstStep, 2), Pair(Span::kRecovery, 4)));
}

TEST_F(JobTimelineTest, LateReportsOfStepsDoNotEndARecovery) {
  After(0, {.state = v1::RUNNING, .step = 10});
  After(0, {.state = v1::RECOVERING, .step = 10});
  After(1, {.state = v1::RECOVERING, .stopped = true, .step = 12});
  After(1, {.state = v1::PREPARING, .step = 13});
  EXPECT_THAT(After(1, {.state = v1::RUNNING, .step = 14}), ElementsAre(Pair(Span::kPrepare, 1)));
  EXPECT_THAT(After(1, {.state = v1::RUNNING, .step = 14}), IsEmpty());
  EXPECT_THAT(After(1, {.state = v1::RUNNING, .step = 15}),
              ElementsAre(Pair(Span::kFirstStep, 2), Pair(Span::kRecovery, 5)));
}

TEST_F(JobTimelineTest, AnotherLossRestartsThePhasesButNotTheRecovery) {
  After(0, {.state = v1::RUNNING, .step = 10});
  After(0, {.state = v1::RECOVERING, .stopped = true, .step = 10});
  After(1, {.state = v1::PREPARING, .step = 10});
  EXPECT_THAT(After(2, {.state = v1::RECOVERING, .step = 10}), IsEmpty()) << "it never was ready";
  EXPECT_THAT(After(1, {.state = v1::RECOVERING, .stopped = true, .step = 10}),
              ElementsAre(Pair(Span::kHalt, 1)));
  After(1, {.state = v1::PREPARING, .step = 10});
  After(1, {.state = v1::RUNNING, .step = 10});
  EXPECT_THAT(After(1, {.state = v1::RUNNING, .step = 11}),
              ElementsAre(Pair(Span::kFirstStep, 1), Pair(Span::kRecovery, 7)));
}

TEST_F(JobTimelineTest, AJobThatEndsDuringARecoveryReportsNone) {
  After(0, {.state = v1::RUNNING, .step = 10});
  After(0, {.state = v1::RECOVERING, .step = 10});
  EXPECT_THAT(After(1, {.state = v1::FAILED, .step = 10}), IsEmpty());
  EXPECT_THAT(After(1, {.state = v1::QUEUED, .step = 10}), IsEmpty());
  EXPECT_THAT(After(1, {.state = v1::PREPARING, .step = 10}), ElementsAre(Pair(Span::kQueue, 1)));
  EXPECT_THAT(After(1, {.state = v1::RUNNING, .step = 10}), IsEmpty());
  EXPECT_THAT(After(1, {.state = v1::RUNNING, .step = 11}), IsEmpty());
}

}  // namespace
}  // namespace muster::job_timeline_test
