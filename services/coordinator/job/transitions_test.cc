#include "services/coordinator/job/transitions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "docs/reference_page.h"
#include "services/coordinator/testing/job_fixture.h"

namespace muster {

using ::testing::HasSubstr;

// Puts a job into each stage and pulls each trigger, as the parts of Job do.
class TransitionsTest : public JobTest {
 protected:
  TransitionsTest() { Begin(); }

  void Begin() {
    v1::Job record = Record();
    record.mutable_spec()->mutable_restart()->set_max_restarts(10);
    record.mutable_spec()->set_on_non_finite(v1::NON_FINITE_ROLLBACK);
    job_ = Job(record, nullptr, /*term=*/1, now_);
  }
  void HaltAll() {
    for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_HALTED, 5);
    for (const char* name : {"p-0", "p-1"}) {
      v1::JobReport report = Say(v1::MEMBER_HALTED, 5);
      report.set_oldest_version(4);
      job_.Report(name, &report, now_);
    }
    TakeEffects();
  }
  void Enter(Stage stage) {
    Begin();
    switch (stage) {
      case Stage::kQueued:
        break;
      case Stage::kPreparing:
        Schedule();
        break;
      case Stage::kRunning:
        Run();
        break;
      case Stage::kDraining:
        Run();
        ASSERT_TRUE(job_.Suspend(now_).ok());
        break;
      case Stage::kHalting:
        Run();
        job_.MemberLost("w-1", "gone", now_);
        break;
      case Stage::kHalted:
        Enter(Stage::kHalting);
        HaltAll();
        break;
      case Stage::kWaiting:
        Enter(Stage::kHalted);
        job_.Wait(JobPhase::kWaitsForMembers, "needs one", now_);
        break;
      case Stage::kSavingHalted:
        Enter(Stage::kWaiting);
        ASSERT_TRUE(job_.Suspend(now_).ok());
        break;
      case Stage::kSuspended:
        ASSERT_TRUE(job_.Suspend(now_).ok());
        break;
      case Stage::kEnded:
        ASSERT_TRUE(job_.Cancel(now_).ok());
        break;
    }
    job_.TakeEffects();
    ASSERT_EQ(NameOf(job_.stage()), NameOf(stage));
  }
  void BreakLink() {
    job_.ActOn({.reason = "UNAVAILABLE", .message = "a link broke", .outcome = EndGeneration()},
               now_);
  }
  // Returns whether a user's call was refused.
  bool Pull(Trigger trigger) {
    switch (trigger) {
      case Trigger::kCancel:
        return !job_.Cancel(now_).ok();
      case Trigger::kResume:
        return !job_.Resume(nullptr, now_).ok();
      case Trigger::kStop:
        return !job_.Suspend(now_).ok();
      case Trigger::kSchedule:
        Schedule();
        break;
      case Trigger::kWait:
        job_.Wait(JobPhase::kWaitsForMemory, "needs memory", now_);
        break;
      case Trigger::kChangeMembers:
        job_.ChangeMembers({.carries = true}, "MEMBER_LEAVES", "a member leaves", now_);
        break;
      case Trigger::kPrepared:
        job_.BeginRunning(now_);
        break;
      case Trigger::kLose:
        BreakLink();
        break;
      case Trigger::kNotFinite:
        job_.ActOn(
            {.reason = "LOSS_NOT_FINITE", .message = "the loss is nan", .outcome = NotFinite{}},
            now_);
        break;
      case Trigger::kTrained:
        job_.Complete(now_);
        break;
      case Trigger::kStopped:
        job_.Stopped("at step 5", now_);
        break;
      case Trigger::kFail:
        job_.Fail("MEMBER_FAILED", "out of memory", now_);
        break;
    }
    return false;
  }
};

// Every pair does what the table says, and none ends the process.
TEST_F(TransitionsTest, EachTriggerActsInEachStageAsTheTableSays) {
  for (int i = 0; i < kStages; ++i) {
    for (int j = 0; j < kTriggers; ++j) {
      const auto stage = static_cast<Stage>(i);
      const auto trigger = static_cast<Trigger>(j);
      SCOPED_TRACE(testing::Message() << NameOf(trigger) << " in " << NameOf(stage));
      ASSERT_NO_FATAL_FAILURE(Enter(stage));
      const v1::Job before = job_.record();
      const bool refused = Pull(trigger);
      const Action action = ActionOn(stage, trigger);
      const ActionRow& row = RowOf(action);
      const bool stays = job_.stage() == stage;
      const bool is_next = std::ranges::count(row.next, job_.stage()) > 0;
      switch (action) {
        case Action::kImpossible:
          if (stage == Stage::kSuspended || stage == Stage::kEnded) {
            EXPECT_EQ(job_.record().SerializeAsString(), before.SerializeAsString());
          } else {
            EXPECT_EQ(job_.state(), v1::FAILED);
            EXPECT_EQ(job_.record().reason(), "INTERNAL");
            EXPECT_THAT(job_.record().message(), HasSubstr(std::string(NameOf(trigger))));
          }
          break;
        case Action::kNothing:
          EXPECT_EQ(job_.record().SerializeAsString(), before.SerializeAsString());
          break;
        case Action::kRefuse:
          EXPECT_TRUE(stays);
          // A repeated call returns OK: a cancelled job is cancelled, a queued one is resumed.
          EXPECT_EQ(refused, trigger != Trigger::kCancel &&
                                 (stage == Stage::kEnded || before.suspend_requested()));
          break;
        case Action::kStop:
        case Action::kTell:
        case Action::kGoOn:
          EXPECT_TRUE(stays || is_next) << NameOf(job_.stage());
          EXPECT_NE(job_.record().reason(), "INTERNAL");
          break;
        default:
          EXPECT_TRUE(is_next) << NameOf(job_.stage());
          EXPECT_NE(job_.record().reason(), "INTERNAL");
      }
    }
  }
}

TEST_F(TransitionsTest, TheReferencePageShowsTheTable) {
  ExpectReferencePage("job_transitions.md", TransitionsInMarkdown(),
                      "//services/coordinator/job:transitions_test");
}

TEST_F(TransitionsTest, AJobThatHoldsStepsSavesThemBeforeItStops) {
  for (const Stage stage : {Stage::kRunning, Stage::kHalting, Stage::kHalted, Stage::kWaiting}) {
    ASSERT_NO_FATAL_FAILURE(Enter(stage));
    ASSERT_TRUE(job_.Suspend(now_).ok());
    EXPECT_NE(job_.state(), v1::SUSPENDED) << NameOf(stage);
    EXPECT_TRUE(job_.record().suspend_requested()) << NameOf(stage);
  }
  for (const Stage stage : {Stage::kQueued, Stage::kPreparing}) {
    ASSERT_NO_FATAL_FAILURE(Enter(stage));
    ASSERT_TRUE(job_.Suspend(now_).ok());
    EXPECT_EQ(job_.record().message(), "suspended before it ran") << NameOf(stage);
  }
}

// Their last reports have records of steps that the log would lack otherwise.
TEST_F(TransitionsTest, AJobThatHoldsNoStepsStopsOnceItsMembersHaveHalted) {
  Run();
  job_.MemberLost("p-1", "gone", now_);
  ASSERT_TRUE(job_.Suspend(now_).ok());
  EXPECT_EQ(NameOf(job_.stage()), NameOf(Stage::kHalting));
  for (const char* name : {"w-0", "p-0", "w-1"}) {
    EXPECT_EQ(job_.state(), v1::RECOVERING);
    Report(name, v1::MEMBER_HALTED, 5);
  }
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
}

TEST_F(TransitionsTest, AJobWithoutRecoveriesLeftFails) {
  for (const Stage stage : {Stage::kPreparing, Stage::kRunning, Stage::kDraining}) {
    ASSERT_NO_FATAL_FAILURE(Enter(stage));
    v1::Job record = job_.record();
    record.mutable_spec()->mutable_restart()->set_max_restarts(0);
    job_ = Job(record, job_.plan(), /*term=*/1, now_);
    BreakLink();
    EXPECT_EQ(job_.state(), v1::FAILED) << NameOf(stage);
    EXPECT_EQ(job_.record().reason(), "UNAVAILABLE");
  }
}

TEST_F(TransitionsTest, APlanOfAnotherGenerationEndsThisJobAlone) {
  Schedule();
  const auto plan = job_.plan();
  Begin();
  v1::Job record = job_.record();
  record.set_generation(7);
  job_ = Job(record, nullptr, /*term=*/1, now_);
  job_.Schedule(plan, now_);
  EXPECT_EQ(job_.record().reason(), "INTERNAL");
}

}  // namespace muster
