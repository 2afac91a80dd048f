#include "cli/text/timing_text.h"

#include <string>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/text/step_verdict.h"

namespace muster::cli::timing_text_test {
namespace {

using ::testing::HasSubstr;

struct Seconds {
  double data = 0, compute = 0, wait = 0;
};

// Adds 100 steps of a worker.
void Add(v1::ReadJobTimingResponse& response, const std::string& worker, const Seconds& seconds,
         double forward = 0) {
  v1::MemberTiming& member = *response.add_members();
  member.set_member(worker);
  v1::StepTiming& timing = *member.mutable_timing();
  timing.set_steps(100);
  timing.set_samples(1600);
  timing.set_step_seconds(seconds.data + seconds.compute + seconds.wait);
  timing.set_data_seconds(seconds.data);
  timing.set_compute_seconds(seconds.compute);
  timing.set_wait_seconds(seconds.wait);
  timing.set_forward_seconds(forward);
  timing.set_backward_seconds(forward > 0 ? seconds.compute - forward : 0);
  timing.set_sent_bytes(100 << 20);
  timing.set_received_bytes(100 << 20);
}

TEST(TimingTextTest, ShowsEveryWorkerAndWhatBoundsTheJob) {
  v1::ReadJobTimingResponse timing;
  Add(timing, "worker-0", {.data = 0.04, .compute = 4.8, .wait = 0.36}, /*forward=*/2.0);
  Add(timing, "worker-1", {.data = 0.04, .compute = 4.6, .wait = 0.56}, /*forward=*/1.9);
  EXPECT_EQ(TimingText("char-gpt-7", timing),
            "WORKER    STEPS  STEP ms  DATA ms  FORWARD ms  BACKWARD ms  WAIT ms  SENT/STEP  "
            "RECEIVED/STEP  SAMPLES/S\n"
            "worker-0  100    52.0     0.4      20.0        28.0         3.6      1.0 MiB    1.0 "
            "MiB        308\n"
            "worker-1  100    52.0     0.4      19.0        27.0         5.6      1.0 MiB    1.0 "
            "MiB        308\n"
            "compute-bound: worker-0 computes 92 % of a step (0.4 data + 48.0 compute + 3.6 wait = "
            "52.0 ms a step). More workers, a faster device or a lower precision help\n");
}

TEST(TimingTextTest, ShowsTheStagesOfTheInput) {
  v1::ReadJobTimingResponse before;
  Add(before, "worker-0", {.data = 2, .compute = 1});
  v1::ReadJobTimingResponse after = before;
  v1::StepTiming& timing = *after.mutable_members(0)->mutable_timing();
  timing.set_steps(200);
  timing.set_samples(3200);
  v1::InputTiming& input = *timing.mutable_input();
  input.set_samples(1600);
  input.set_threads(2);
  input.set_read_seconds(0.32);
  input.set_decode_seconds(3.2);
  input.set_substituted(3);
  EXPECT_THAT(
      TimingText("a-1", Since(before, after)),
      HasSubstr("INPUT     THREADS  OPEN ms  READ ms  DECODE ms  RESAMPLE ms  AUGMENT ms  CAN "
                "READ/S  REPLACED\n"
                "worker-0  2        0.000    0.200    2.000      0.000        0.000       909 "
                "        3\n"));
}

TEST(TimingTextTest, WithoutTheForwardPassThereIsOneColumnForComputing) {
  v1::ReadJobTimingResponse timing;
  Add(timing, "worker-0", {.compute = 2, .wait = 3});
  Add(timing, "worker-1", {.compute = 4.9, .wait = 0.1});
  EXPECT_EQ(
      TimingText("a-1", timing),
      "WORKER    STEPS  STEP ms  DATA ms  COMPUTE ms  WAIT ms  SENT/STEP  RECEIVED/STEP  "
      "SAMPLES/S\n"
      "worker-0  100    50.0     0.0      20.0        30.0     1.0 MiB    1.0 MiB        320\n"
      "worker-1  100    50.0     0.0      49.0        1.0      1.0 MiB    1.0 MiB        320\n" +
          absl::StrJoin(StepVerdict(StepCosts(timing)), "\n") + "\n");
}

TEST(TimingTextTest, ShowsTheTimeInCollectivesOfTheRanks) {
  v1::ReadJobTimingResponse before;
  Add(before, "worker-0", {.compute = 2});
  v1::ReadJobTimingResponse after = before;
  v1::StepTiming& timing = *after.mutable_members(0)->mutable_timing();
  timing.set_steps(200);
  timing.set_step_seconds(6);
  timing.set_compute_seconds(6);
  timing.set_tensor_parallel_seconds(1);
  EXPECT_THAT(TimingText("a-1", Since(before, after)),
              HasSubstr("WORKER    STEPS  STEP ms  DATA ms  COMPUTE ms  RANKS ms  WAIT ms  "));
  EXPECT_THAT(TimingText("a-1", Since(before, after)),
              HasSubstr("worker-0  100    40.0     0.0      40.0        10.0      0.0 "));
}

TEST(TimingTextTest, SinceReturnsTheDifferenceIfThereIsOne) {
  v1::ReadJobTimingResponse before, after;
  Add(before, "worker-0", {.compute = 5});
  EXPECT_THAT(TimingText("a-1", v1::ReadJobTimingResponse()), HasSubstr("a-1: no worker has"));
  after = before;
  v1::StepTiming& timing = *after.mutable_members(0)->mutable_timing();
  timing.set_steps(110);
  timing.set_step_seconds(7);
  timing.set_compute_seconds(7);
  const v1::StepTiming since = Since(before, after).members(0).timing();
  EXPECT_EQ(since.steps(), 10);
  EXPECT_EQ(since.compute_seconds(), 2);
  EXPECT_EQ(Since(before, before).members(0).timing().steps(), 100) << "no new step: all of it";
  timing.set_steps(3);
  EXPECT_EQ(Since(before, after).members(0).timing().steps(), 3) << "another generation";
}

}  // namespace
}  // namespace muster::cli::timing_text_test
