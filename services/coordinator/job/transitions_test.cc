#include "services/coordinator/job/transitions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "docs/reference_page.h"
#include "services/coordinator/testing/job_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

// The effect of an action.
struct ActionRow {
  absl::string_view name;
  absl::string_view guard;  // the condition of the first part of `does`; "": none
  absl::string_view does;
  absl::Span<const Stage> next;  // where it may lead to. Empty: the stage does not change
};

// The stages that actions lead to.
constexpr Stage kToEnded[] = {Stage::kEnded};
constexpr Stage kToQueued[] = {Stage::kQueued};
constexpr Stage kToStop[] = {Stage::kPreparing, Stage::kDraining, Stage::kHalting,
                             Stage::kHalted,    Stage::kWaiting,  Stage::kSavingHalted,
                             Stage::kSuspended, Stage::kQueued,   Stage::kEnded};
constexpr Stage kToPreparing[] = {Stage::kPreparing};
constexpr Stage kToRunning[] = {Stage::kRunning, Stage::kDraining, Stage::kHalting, Stage::kHalted,
                                Stage::kEnded};
constexpr Stage kToWaiting[] = {Stage::kQueued,       Stage::kHalting,   Stage::kWaiting,
                                Stage::kSavingHalted, Stage::kSuspended, Stage::kEnded};
constexpr Stage kToHalting[] = {Stage::kHalting, Stage::kHalted, Stage::kSuspended, Stage::kQueued,
                                Stage::kEnded};
constexpr Stage kToRecovering[] = {Stage::kHalting,      Stage::kHalted,    Stage::kWaiting,
                                   Stage::kSavingHalted, Stage::kSuspended, Stage::kQueued,
                                   Stage::kEnded};

constexpr std::array<ActionRow, kActions> kRows = {{
    {"impossible", "",
     "fails this job with the reason INTERNAL, and logs the pair. A job that is suspended or has "
     "ended stays so",
     kToEnded},
    {"nothing", "", "nothing", {}},
    {"refuse", "", "returns an error, or OK if there is nothing to do", {}},
    {"end", "", "releases all members", kToEnded},
    {"queue", "", "queues the job", kToQueued},
    {"stop", "the job holds steps that are in no checkpoint",
     "saves them first: a running job drains, a waiting one saves its halted shards, another one "
     "recovers to do that. Otherwise it stops at once: its stop cause says whether it is "
     "suspended, queued or failed",
     kToStop},
    {"prepare", "", "sends the plan of the next generation to its members", kToPreparing},
    {"run", "all workers see the same data and have like devices",
     "starts the members. Otherwise it leaves out newcomers that differ, or fails", kToRunning},
    {"tell", "", "says what the job waits for. A job that recovers only to stop, stops",
     kToWaiting},
    {"halt", "restart.max_restarts or, at a value that is not finite, on_non_finite allows it",
     "halts the members, so that another generation can follow. Otherwise it fails. If it is to "
     "stop and holds no steps, it stops once all have halted",
     kToHalting},
    {"go on", "", "goes on with the recovery, without the member; stops as after halt",
     kToRecovering},
}};

const ActionRow& RowOf(Action action) { return kRows.at(static_cast<size_t>(action)); }

// Returns the page docs/reference/job_transitions.md.
std::string TransitionsInMarkdown() {
  std::string text =
      "# Transitions of a job\n\n"
      "A row is a trigger, a column the stage in which it comes. `-` cannot happen: it ends this "
      "job alone (`INTERNAL`).\n"
      "Draining is a part of RUNNING; Halting, Halted, Waiting and SavingHalted are parts of "
      "RECOVERING.\n"
      "[transitions.h](../../services/coordinator/job/transitions.h) explains them. Made by "
      "`//services/coordinator/job:transitions_test`.\n\n"
      "|";
  for (int stage = 0; stage < kStages; ++stage) {
    absl::StrAppend(&text, " | ", NameOf(static_cast<Stage>(stage)));
  }
  absl::StrAppend(&text, " |\n|---|");
  for (int stage = 0; stage < kStages; ++stage) absl::StrAppend(&text, "---|");
  for (int trigger = 0; trigger < kTriggers; ++trigger) {
    absl::StrAppend(&text, "\n| ", NameOf(static_cast<Trigger>(trigger)), " |");
    for (int stage = 0; stage < kStages; ++stage) {
      const Action action = ActionOn(static_cast<Stage>(stage), static_cast<Trigger>(trigger));
      absl::StrAppend(&text, " ", action == Action::kImpossible ? "-" : RowOf(action).name, " |");
    }
  }
  absl::StrAppend(&text, "\n\n| action | what the job does | may lead to |\n|---|---|---|\n");
  for (const ActionRow& row : kRows) {
    absl::StrAppend(
        &text, "| ", row.name == "impossible" ? "-" : row.name, " | ",
        row.guard.empty() ? "" : absl::StrCat("if ", row.guard, ": "), row.does, " | ",
        absl::StrJoin(row.next, ", ",
                      [](std::string* out, Stage stage) { absl::StrAppend(out, NameOf(stage)); }),
        " |\n");
  }
  return text;
}

}  // namespace

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
