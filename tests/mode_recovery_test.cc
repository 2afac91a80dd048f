// Checks the promises of the sync modes when a worker and a ps die or leave. Section 8
// of docs/architecture.md has the table. Plain bsp and allreduce have their own tests
// (recovery_test, allreduce_test).
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/member_exit.h"
#include "tests/metrics_page.h"
#include "tests/training_cluster.h"

namespace muster::mode_recovery_test {
namespace {

using ::testing::HasSubstr;

const int kSteps = Lengthened(3000);  // of about a millisecond each
constexpr int kCheckpointSteps = 240;

struct Mode {
  std::string name;
  std::string sync;
  bool same_bits = false;              // as a job that nothing disturbs
  bool worker_costs_one_step = false;  // a worker's death costs at most one step
};

// Returns bsp with a codec. A worker's residual (the error that it feeds back) is lost with the
// worker and with every generation. So the result does not have the bits of an undisturbed job.
Mode Compressed(const std::string& codec) {
  return {.name = codec,
          .sync = absl::StrCat("{mode: bsp, compression: ", codec, "}"),
          .worker_costs_one_step = true};
}

std::string JobFile(const Mode& mode, int steps = kSteps, int every_steps = kCheckpointSteps) {
  return absl::Substitute(R"(
name: $0
model: {zoo: {name: gpt, args: {layers: 1, heads: 2, channels: 32, context: 32, dropout: 0.1}}}
data: {text: {path: examples/data/licences}, batch_size: 6, seed: 1}
training: {steps: $1, optimizer: {adamw: {learning_rate: 1e-3}}, seed: 9}
sync: $2
resources: {workers: {min: 3, max: 3}, ps: 2}
checkpoint: {every_steps: $3, every: 0s, keep_last: 0}
)",
                          mode.name, steps, mode.sync, every_steps);
}

class ModeRecoveryTest : public ::testing::TestWithParam<Mode> {
 protected:
  static void SetUpTestSuite() {
    cluster_ = new TrainingCluster({.ps = 2, .workers = 3, .ps_threads = 1});
  }
  static void TearDownTestSuite() { delete cluster_; }

  // Waits until the job has a checkpoint of `step` or later, and has trained on from there.
  static void AwaitCheckpoint(const std::string& job, int64_t step) {
    cluster_->Await(job, [&](const v1::Job& seen) { return CheckpointStepOf(seen) >= step; });
    AwaitMoreSteps(*cluster_, job, 50);
  }

  // Kills the member, restarts it, and returns the job when it runs again. `recoveries`: the job's
  // count of recoveries after that.
  static v1::Job Strike(const std::string& job, const std::string& member, int recoveries) {
    EXPECT_TRUE(cluster_->members().Kill(member, SIGKILL).ok());
    cluster_->Await(
        job, [&](const v1::Job& seen) { return seen.recovery().count() == recoveries; },
        absl::Seconds(30));
    EXPECT_TRUE(cluster_->members().Restart(member).ok());
    return cluster_->AwaitState(job, v1::RUNNING, absl::Seconds(60));
  }

  static void ExpectWentBackToACheckpoint(const v1::Job& job) {
    ASSERT_TRUE(job.recovery().has_resumed_step());
    EXPECT_GE(job.recovery().resumed_step(), kCheckpointSteps);
    EXPECT_EQ(job.recovery().resumed_step() % kCheckpointSteps, 0);
  }

  static void ExpectAsPromised(const std::string& job, int steps) {
    // Every step is recorded once, in order.
    const std::vector<StepMetrics> metrics = cluster_->Metrics(job);
    ASSERT_EQ(metrics.size(), steps);
    for (size_t i = 0; i < metrics.size(); ++i) ASSERT_EQ(metrics[i].step, i);
    EXPECT_LT(metrics.back().loss, metrics.front().loss) << "it has learnt";
    if (!GetParam().same_bits) return;
    const std::string undisturbed = cluster_->Run(JobFile(GetParam(), steps));
    EXPECT_EQ(cluster_->Hashes(job, steps), cluster_->Hashes(undisturbed, steps));
  }

  static TrainingCluster* cluster_;
};

TrainingCluster* ModeRecoveryTest::cluster_ = nullptr;

TEST_P(ModeRecoveryTest, AWorkerAndAPsDieAndTheJobEndsAsPromised) {
  const Mode& mode = GetParam();
  const std::string job = cluster_->Submit(JobFile(mode));
  AwaitCheckpoint(job, kCheckpointSteps);

  const v1::Job after_worker = Strike(job, "worker-1", 1);

  // A worker's death costs the steps since the last checkpoint, or one step.
  if (mode.worker_costs_one_step) {
    EXPECT_LE(after_worker.recovery().steps_again(), 1);
  } else {
    ExpectWentBackToACheckpoint(after_worker);
  }
  AwaitCheckpoint(job, 2 * kCheckpointSteps);
  ExpectWentBackToACheckpoint(Strike(job, "ps-0", 2));
  EXPECT_EQ(cluster_->AwaitState(job, v1::SUCCEEDED).recovery().count(), 2) << cluster_->Logs();
  ExpectAsPromised(job, kSteps);
}

// Members leave on SIGTERM; none dies. A leaving ps waits for a checkpoint, and so does a worker
// unless its death costs only a step. Codecs are not tested, because they do not change how members
// leave.
class ModeLeavingTest : public ModeRecoveryTest {};

TEST_P(ModeLeavingTest, AWorkerAndAPsAreToldToStopAndTheJobEndsAsPromised) {
  constexpr int kEnough = 6000;  // a leave takes a second; local_sgd makes 2,000 steps in that time
  const Mode& mode = GetParam();
  const std::string job = cluster_->Submit(JobFile(mode, kEnough, /*every_steps=*/0));
  int64_t saved = 0;
  for (const std::string member : {"worker-1", "ps-0"}) {
    SCOPED_TRACE(member);
    AwaitMoreSteps(*cluster_, job, 200);
    const int64_t step = cluster_->Get(job).progress().step();
    const absl::Time begin = absl::Now();
    ExpectOrderlyExit(*cluster_, member);
    EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
    const v1::Job left = cluster_->AwaitState(job, v1::RECOVERING, absl::Seconds(10));
    EXPECT_THAT(left.message(), HasSubstr(member));
    if (member == "ps-0" || !mode.worker_costs_one_step) {
      EXPECT_GT(CheckpointStepOf(left), saved) << "it left none";
      EXPECT_GE(CheckpointStepOf(left), step) << left.checkpoint();
      saved = CheckpointStepOf(left);
    }
    ASSERT_TRUE(cluster_->members().Restart(member).ok());
    cluster_->AwaitState(job, v1::RUNNING, absl::Seconds(60));
  }
  EXPECT_EQ(cluster_->AwaitState(job, v1::SUCCEEDED).recovery().count(), 0) << cluster_->Logs();
  ExpectAsPromised(job, kEnough);
}

std::string NameOf(const ::testing::TestParamInfo<Mode>& instance) {
  std::string name = instance.param.name;
  std::erase(name, '-');
  return name;
}

std::vector<Mode> Modes() {
  return {Mode{.name = "ssp", .sync = "{mode: ssp, staleness: 2}"},
          Mode{.name = "asp", .sync = "{mode: asp}"},
          Mode{.name = "backup-workers", .sync = "{mode: bsp, backup_workers: 1}"},
          Mode{.name = "local-sgd", .sync = "{mode: local_sgd, every: 4}", .same_bits = true}};
}

INSTANTIATE_TEST_SUITE_P(Modes, ModeRecoveryTest, ::testing::ValuesIn(Modes()), NameOf);
INSTANTIATE_TEST_SUITE_P(Codecs, ModeRecoveryTest,
                         ::testing::Values(Compressed("int8"), Compressed("topk"),
                                           Compressed("onebit"), Compressed("powersgd")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Modes, ModeLeavingTest, ::testing::ValuesIn(Modes()), NameOf);

}  // namespace
}  // namespace muster::mode_recovery_test
