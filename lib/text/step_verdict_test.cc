#include "lib/text/step_verdict.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::step_verdict_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

struct Seconds {
  double data = 0, compute = 0, wait = 0;
};

// Adds 100 steps of a worker that sends and receives 1 MiB a step.
void Add(v1::ReadJobTimingResponse& timing, const std::string& worker, const Seconds& seconds) {
  v1::MemberTiming& member = *timing.add_members();
  member.set_member(worker);
  v1::StepTiming& steps = *member.mutable_timing();
  steps.set_steps(100);
  steps.set_step_seconds(seconds.data + seconds.compute + seconds.wait);
  steps.set_data_seconds(seconds.data);
  steps.set_compute_seconds(seconds.compute);
  steps.set_wait_seconds(seconds.wait);
  steps.set_sent_bytes(100 << 20);
  steps.set_received_bytes(100 << 20);
}

std::vector<std::string> VerdictOf(const v1::ReadJobTimingResponse& timing) {
  return StepVerdict(StepCosts(timing));
}

TEST(StepVerdictTest, SaysNothingBeforeTheFirstStep) {
  v1::ReadJobTimingResponse timing;
  EXPECT_THAT(VerdictOf(timing), IsEmpty());
  timing.add_members()->set_member("worker-0");
  EXPECT_THAT(VerdictOf(timing), IsEmpty());
}

TEST(StepVerdictTest, ComputingBoundsAJobWhoseWorkersMostlyCompute) {
  v1::ReadJobTimingResponse timing;
  Add(timing, "worker-0", {.data = 0.04, .compute = 4.8, .wait = 0.36});
  Add(timing, "worker-1", {.data = 0.04, .compute = 4.6, .wait = 0.56});
  EXPECT_THAT(VerdictOf(timing),
              ElementsAre("compute-bound: worker-0 computes 92 % of a step (0.4 data + 48.0 "
                          "compute + 3.6 wait = 52.0 ms a step). More workers, a faster device or "
                          "a lower precision help"));
}

TEST(StepVerdictTest, CollectivesOfTheRanksMayBoundAJob) {
  v1::ReadJobTimingResponse timing;
  Add(timing, "worker-0", {.compute = 4, .wait = 1});
  v1::StepTiming& steps = *timing.mutable_members(0)->mutable_timing();
  steps.set_tensor_parallel_seconds(1.2);
  EXPECT_THAT(VerdictOf(timing),
              ElementsAre("tensor-parallel-bound: worker-0 spends 30 % of its computing time in "
                          "collectives of its ranks (0.0 data + 40.0 compute + 10.0 wait = 50.0 ms "
                          "a step). A smaller resources.tensor_parallel or a larger batch helps"));
  steps.set_tensor_parallel_seconds(1.1);
  EXPECT_THAT(VerdictOf(timing), ElementsAre(StartsWith("compute-bound: ")));
}

TEST(StepVerdictTest, TheOthersWaitForAStraggler) {
  v1::ReadJobTimingResponse timing;
  Add(timing, "worker-0", {.compute = 2, .wait = 3});
  Add(timing, "worker-1", {.compute = 4.9, .wait = 0.1});
  Add(timing, "worker-2", {.compute = 2, .wait = 3});
  EXPECT_THAT(VerdictOf(timing),
              ElementsAre("straggler: worker-1 needs 49.0 ms of its own for a step, the others "
                          "20.0 ms (x2.4): they wait for it",
                          StartsWith("compute-bound: worker-1")))
      << "the others' waiting is no communication";
}

// With 4 logical workers, one of 3 workers computes two of them.
TEST(StepVerdictTest, AWorkerWithMoreSamplesIsNoStraggler) {
  v1::ReadJobTimingResponse timing;
  Add(timing, "worker-0", {.compute = 4, .wait = 0.1});
  Add(timing, "worker-1", {.compute = 2, .wait = 2.1});
  Add(timing, "worker-2", {.compute = 2.2, .wait = 1.9});
  for (int i = 0; i < 3; ++i) {
    v1::StepTiming& steps = *timing.mutable_members(i)->mutable_timing();
    steps.set_samples(steps.steps() * (i == 0 ? 16 : 8));
  }
  EXPECT_THAT(VerdictOf(timing),
              ElementsAre(StartsWith("uneven shares: worker-0 trains 16.0 samples of a step, the "
                                     "others 8.0: they wait for it."),
                          StartsWith("compute-bound: worker-0")));
  // It takes three times as long for twice the samples.
  timing.mutable_members(0)->mutable_timing()->set_compute_seconds(6.3);
  EXPECT_THAT(VerdictOf(timing), Contains(StartsWith("straggler: worker-0")));
}

TEST(StepVerdictTest, CommunicationBoundsAJobWhoseSlowestWorkerWaits) {
  v1::ReadJobTimingResponse timing;
  Add(timing, "worker-0", {.compute = 1, .wait = 4});
  Add(timing, "worker-1", {.compute = 1.1, .wait = 3.9});
  EXPECT_THAT(VerdictOf(timing),
              ElementsAre(AllOf(
                  StartsWith("communication-bound: worker-1 waits 78 % of a step for parameters"),
                  HasSubstr("it sends 1.0 MiB and receives 1.0 MiB a step, 40.0 MiB/s"))));
}

TEST(StepVerdictTest, ASlowDiskIsInput) {
  v1::ReadJobTimingResponse timing;
  Add(timing, "worker-0", {.data = 3, .compute = 2, .wait = 0.1});
  EXPECT_THAT(VerdictOf(timing),
              ElementsAre(StartsWith("input-bound: worker-0 waits 59 % of a step")));
}

TEST(StepVerdictTest, ASlowStageOfTheInputIsNamed) {
  v1::ReadJobTimingResponse timing;
  Add(timing, "worker-0", {.data = 3, .compute = 2});
  v1::StepTiming& steps = *timing.mutable_members(0)->mutable_timing();
  steps.set_samples(1000);
  steps.mutable_input()->set_samples(1100);  // some are read ahead
  steps.mutable_input()->set_threads(2);
  steps.mutable_input()->set_read_seconds(1.1);
  steps.mutable_input()->set_decode_seconds(9.9);
  EXPECT_THAT(
      VerdictOf(timing),
      ElementsAre(StartsWith(
          "input-bound: worker-0 trains 200 of 500 samples/s (30.0 data + 20.0 compute + 0.0 "
          "wait = 50.0 ms a step); decode takes 90 % of 10.0 ms a sample on 2 threads; 5 "
          "threads would keep up.")));
}

}  // namespace
}  // namespace muster::step_verdict_test
