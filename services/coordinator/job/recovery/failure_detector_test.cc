#include "services/coordinator/job/recovery/failure_detector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"

namespace muster::failure_detector_test {
namespace {

using ::testing::HasSubstr;

const absl::Time kStart = absl::FromUnixSeconds(1000);

class FailureDetectorTest : public ::testing::Test {
 protected:
  FailureDetectorTest() {
    v1::JobPlan plan;
    for (const char* name : {"w-0", "w-1"}) plan.add_workers()->set_member(name);
    plan.add_shards()->set_member("p-0");
    plan.add_chunks()->set_shard(0);
    plan.mutable_workers(1)->set_host("node-3");
    members_.Enlist(plan, kStart);
  }

  void Report(const std::string& name, v1::MemberJobState state, int64_t next_step = 0,
              uint64_t prepare_progress = 0) {
    v1::JobReport report;
    report.set_prepare_progress(prepare_progress);
    report.set_state(state);
    report.set_next_step(next_step);
    members_.Take(name, &report, now_);
  }
  static v1::MemberError Error(const std::string& culprit) {
    v1::MemberError error;
    error.set_culprit(culprit);
    error.set_reason("PEER_LOST");
    error.set_message("connection reset");
    error.set_step(7);
    return error;
  }

  absl::Time now_ = kStart;
  JobMembers members_;
  FailureDetector failure_detector_;
};

TEST_F(FailureDetectorTest, FailedMemberThatAccusesNoOtherMemberIsAtFault) {
  for (const char* culprit : {"", "w-0", "an outsider"}) {
    const auto decision = failure_detector_.OnError("w-0", Error(culprit), members_, kStart);
    ASSERT_TRUE(decision.has_value()) << culprit;
    EXPECT_EQ(decision->reason, "PEER_LOST");
    EXPECT_EQ(decision->message, "w-0 failed at step 7: connection reset");
  }
  v1::MemberError unreasoned;
  for (const char* reason : {"", "no \n word", "lost", "A\x1b[2J"}) {
    unreasoned.set_reason(reason);
    EXPECT_EQ(failure_detector_.OnError("w-0", unreasoned, members_, kStart)->reason,
              "MEMBER_FAILED");
  }
}

TEST_F(FailureDetectorTest, MemberWithoutItsDeviceIsLostAndTheOthersContinue) {
  v1::MemberError error = Error("");
  error.set_code(static_cast<int>(absl::StatusCode::kInternal));
  EXPECT_TRUE(std::holds_alternative<FailJob>(
      failure_detector_.OnError("w-0", error, members_, kStart)->outcome));
  error.set_reason("DEVICE_LOST");
  const auto decision = failure_detector_.OnError("w-0", error, members_, kStart);
  EXPECT_TRUE(std::holds_alternative<LoseMember>(decision->outcome));
  EXPECT_EQ(decision->LostMember(), "w-0");
}

TEST_F(FailureDetectorTest, ValueThatIsNotFiniteNamesItsStepAndItsCause) {
  for (const std::string reason : {"LOSS_NOT_FINITE", "DATA_NOT_FINITE"}) {
    v1::MemberError error = Error("");
    error.set_reason(reason);
    const auto decision = failure_detector_.OnError("w-0", error, members_, kStart);
    const auto* failure = std::get_if<NotFinite>(&decision->outcome);
    ASSERT_NE(failure, nullptr);
    EXPECT_EQ(failure->step, 7);
    EXPECT_EQ(failure->because_of_data, reason == "DATA_NOT_FINITE");
  }
}

TEST_F(FailureDetectorTest, AccusationTakesEffectAfterAWhileUnlessTheGenerationEnds) {
  EXPECT_FALSE(failure_detector_.OnError("w-0", Error("p-0"), members_, kStart).has_value());
  EXPECT_FALSE(failure_detector_.OnError("w-1", Error("w-0"), members_, kStart).has_value())
      << "only the first accusation counts";
  const absl::Time settled = kStart + FailureDetector::kAccusationSettles;
  EXPECT_FALSE(failure_detector_.Tick({}, members_, settled - absl::Milliseconds(1)).has_value());

  const auto decision = failure_detector_.Tick({}, members_, settled);

  ASSERT_TRUE(decision.has_value());
  EXPECT_EQ(decision->message,
            "p-0 (ps, shard 0) is at fault at step 7, says w-0: connection reset");
  failure_detector_.Reset();
  EXPECT_FALSE(failure_detector_.Tick({}, members_, settled).has_value());
}

TEST_F(FailureDetectorTest, LossOfTheAccusedMemberQuotesTheAccusation) {
  Report("p-0", v1::MEMBER_RUNNING, 9);
  EXPECT_EQ(failure_detector_.Lost("p-0", "its lease ran out", members_, /*step=*/8).message,
            "p-0 (ps, shard 0) was lost at step 9: its lease ran out");
  failure_detector_.OnError("w-0", Error("p-0"), members_, kStart);

  const FailureDecision decision =
      failure_detector_.Lost("p-0", "its lease ran out", members_, /*step=*/8);

  EXPECT_EQ(decision.reason, "MEMBER_LOST");
  EXPECT_EQ(decision.message,
            "p-0 (ps, shard 0) was lost at step 7: its lease ran out (w-0: connection reset)");
}

TEST_F(FailureDetectorTest, MemberThatDoesNotReturnAfterARestartIsLost) {
  failure_detector_.BeginGrace(kStart);
  Report("w-0", v1::MEMBER_RUNNING);
  Report("p-0", v1::MEMBER_RUNNING);
  const absl::Time end = kStart + FailureDetector::kRestartGrace;
  EXPECT_FALSE(failure_detector_.Tick({.step = 5}, members_, end - absl::Seconds(1)).has_value());

  const auto decision = failure_detector_.Tick({.step = 5}, members_, end);

  ASSERT_TRUE(decision.has_value());
  EXPECT_EQ(decision->message,
            "w-1 (worker, rank 1, on node-3) was lost at step 5: it did not come back within 30s "
            "after the coordinator's restart; 1 worker waits for its gradients");
  members_.SetLost("w-1");
  EXPECT_FALSE(failure_detector_.Tick({.step = 5}, members_, end).has_value())
      << "reported only once";
}

TEST_F(FailureDetectorTest, MissingMemberThatAPsLostTooIsLostSoonAfterARestart) {
  failure_detector_.BeginGrace(kStart);
  Report("w-0", v1::MEMBER_RUNNING);
  v1::JobReport report;
  report.set_state(v1::MEMBER_RUNNING);
  for (const char* name : {"w-0", "w-1"}) report.add_lost_links(name);
  members_.Take("p-0", &report, now_);
  const absl::Time soon = kStart + FailureDetector::kReturnTime;
  const FailureDetector::Situation running{.step = 5}, preparing{.preparing = true};
  EXPECT_FALSE(failure_detector_.Tick(running, members_, soon - absl::Milliseconds(1)).has_value());
  EXPECT_FALSE(failure_detector_.Tick(preparing, members_, soon).has_value())
      << "links do not exist yet";

  const auto decision = failure_detector_.Tick(running, members_, soon);

  ASSERT_TRUE(decision.has_value());
  EXPECT_EQ(decision->LostMember(), "w-1") << "w-0 has returned";
  EXPECT_EQ(decision->message,
            "w-1 (worker, rank 1, on node-3) was lost at step 5: it did not come back after the "
            "coordinator's restart, and its link to a ps broke; 1 worker waits for its gradients");
  members_.SetLost("w-1");
  EXPECT_FALSE(failure_detector_.Tick(running, members_, soon).has_value()) << "reported only once";
}

// A member that halts closes its links itself, and may do so before the coordinator is back.
TEST_F(FailureDetectorTest, BrokenLinkIsNoSignOfALossWhileTheGenerationHalts) {
  failure_detector_.BeginGrace(kStart);
  Report("w-0", v1::MEMBER_HALTED);
  v1::JobReport report;
  report.set_state(v1::MEMBER_HALTED);
  report.add_lost_links("w-1");
  members_.Take("p-0", &report, now_);
  const absl::Time end = kStart + FailureDetector::kRestartGrace;
  const FailureDetector::Situation halting{.step = 5, .halting_since = end};
  EXPECT_FALSE(failure_detector_.Tick(halting, members_, end - absl::Milliseconds(1)).has_value());
  EXPECT_EQ(failure_detector_.Tick(halting, members_, end)->LostMember(), "w-1");
}

TEST_F(FailureDetectorTest, MemberWithoutProgressInPreparingIsLost) {
  failure_detector_.BeginPreparing();
  for (const char* name : {"w-0", "p-0"}) Report(name, v1::MEMBER_PREPARED);
  Report("w-1", v1::MEMBER_PREPARING);
  const FailureDetector::Situation preparing{.preparing = true, .first_step = 4};
  now_ += FailureDetector::kPrepareStallMax;
  EXPECT_FALSE(failure_detector_.Tick({.preparing = false}, members_, now_).has_value());
  Report("w-1", v1::MEMBER_PREPARING, 0, /*prepare_progress=*/1 << 20);
  EXPECT_FALSE(failure_detector_.Tick(preparing, members_, now_).has_value())
      << "it makes progress";
  now_ += FailureDetector::kPrepareStallMax;
  Report("w-1", v1::MEMBER_PREPARING, 0, /*prepare_progress=*/1 << 20);

  const auto decision = failure_detector_.Tick(preparing, members_, now_);

  ASSERT_TRUE(decision.has_value());
  EXPECT_EQ(decision->reason, "PREPARE_TIMEOUT");
  EXPECT_EQ(
      decision->message,
      "w-1 (worker, rank 1, on node-3) is not ready for step 4 and has shown no progress for 10m");
}

// A paused worker has no deadline of its own, so without kPauseMax it would wait forever.
TEST_F(FailureDetectorTest, WorkerThatDoesNotPauseIsLostAfterAnotherHasWaited) {
  for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_RUNNING);
  Report("p-0", v1::MEMBER_RUNNING);
  const FailureDetector::Situation pausing{.pausing = true};
  now_ += FailureDetector::kPauseMax;
  EXPECT_FALSE(failure_detector_.Tick(pausing, members_, now_).has_value())
      << "no worker has paused yet";
  Report("w-0", v1::MEMBER_PAUSED);
  now_ += FailureDetector::kPauseMax;
  EXPECT_FALSE(failure_detector_.Tick({.pausing = false}, members_, now_).has_value());

  const auto decision = failure_detector_.Tick(pausing, members_, now_);

  ASSERT_TRUE(decision.has_value());
  EXPECT_EQ(decision->reason, "HALT_TIMEOUT");
  EXPECT_EQ(decision->LostMember(), "w-1");
  EXPECT_EQ(decision->message,
            "w-1 (worker, rank 1, on node-3) did not pause, and others have waited "
            "for 10m; the job continues without it");
  Report("w-1", v1::MEMBER_PAUSED);
  now_ += FailureDetector::kPauseMax;
  EXPECT_FALSE(failure_detector_.Tick(pausing, members_, now_).has_value())
      << "a save may take longer";
}

// The workers have paused, and none of them waits with a deadline.
TEST_F(FailureDetectorTest, MemberThatDoesNotReportOnACheckpointIsLost) {
  for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_PAUSED);
  const FailureDetector::Situation mute{.pausing = true, .mute = "p-0", .asked_step = 7};
  EXPECT_FALSE(failure_detector_.Tick(mute, members_, now_).has_value());
  now_ += FailureDetector::kPauseMax - absl::Seconds(1);
  EXPECT_FALSE(failure_detector_.Tick({.pausing = true}, members_, now_).has_value())
      << "a member writes the checkpoint";
  EXPECT_FALSE(failure_detector_.Tick(mute, members_, now_).has_value());
  now_ += FailureDetector::kPauseMax - absl::Seconds(1);
  EXPECT_FALSE(failure_detector_.Tick(mute, members_, now_).has_value());
  failure_detector_.WentOn(now_);
  now_ += FailureDetector::kPauseMax - absl::Seconds(1);
  EXPECT_FALSE(failure_detector_.Tick(mute, members_, now_).has_value());
  now_ += absl::Seconds(1);

  const auto decision = failure_detector_.Tick(mute, members_, now_);

  ASSERT_TRUE(decision.has_value());
  EXPECT_EQ(decision->reason, "HALT_TIMEOUT");
  EXPECT_EQ(decision->LostMember(), "p-0");
  EXPECT_TRUE(std::holds_alternative<LeaveOut>(decision->outcome));
  EXPECT_THAT(decision->message,
              HasSubstr("was asked for a checkpoint of 7, the step at which the workers "
                        "stand, and has neither made one nor refused for 10m"));
}

TEST_F(FailureDetectorTest, MemberThatDoesNotHaltIsLost) {
  for (const char* name : {"w-0", "p-0"}) Report(name, v1::MEMBER_HALTED);
  Report("w-1", v1::MEMBER_RUNNING);
  const FailureDetector::Situation halting{.halting_since = kStart};
  now_ += FailureDetector::kHaltMax;

  const auto decision = failure_detector_.Tick(halting, members_, now_);

  ASSERT_TRUE(decision.has_value());
  EXPECT_EQ(decision->reason, "HALT_TIMEOUT");
  EXPECT_EQ(decision->message,
            "w-1 (worker, rank 1, on node-3) was told to halt 2m ago and has not "
            "halted; the job continues without it");
}

}  // namespace
}  // namespace muster::failure_detector_test
