// Every sync mode learns, survives a suspension, and keeps its promise about stragglers.
#include <signal.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/metrics_page.h"
#include "tests/training_cluster.h"

namespace muster::consistency_test {
namespace {

constexpr int kStepsPerEpoch = 132;  // 8,500 images in batches of 64
constexpr double kAccuracy = 0.97;
const int kManyEpochs = Lengthened(6);  // of runs that are suspended in the first epoch

struct Digits {
  std::string sync;
  int workers = 2;
  int ps = 2;
  int epochs = 5;
};

// LeNet on MNIST.
std::string JobFile(const Digits& job) {
  return absl::Substitute(R"(
name: digits
model: {zoo: {name: lenet, args: {classes: 10}}}
data:
  idx: {images: examples/data/mnist/t10k-images-idx3-ubyte.gz,
        labels: examples/data/mnist/t10k-labels-idx1-ubyte.gz, holdout: 0.15}
  batch_size: 64
  seed: 1
training:
  epochs: $0
  optimizer: {adam: {learning_rate: 2e-3}}
  schedule: {warmup_steps: 50, cosine: {final_ratio: 0.05}}
  seed: 1
sync: $1
resources: {workers: {min: $2, max: $2}, ps: $3}
chunk_bytes: 65536
)",
                          job.epochs, job.sync, job.workers, job.ps);
}

class ConsistencyTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    cluster_ = new TrainingCluster({.ps = 2, .workers = 3, .ps_threads = 1});
  }
  static void TearDownTestSuite() { delete cluster_; }

  static v1::Job Finish(const std::string& job, int epochs) {
    const v1::Job done = cluster_->AwaitState(job, v1::SUCCEEDED);
    EXPECT_EQ(done.progress().step(), epochs * kStepsPerEpoch);
    // Every step is recorded once, in order, whichever worker computed it.
    const std::vector<StepMetrics> metrics = cluster_->Metrics(job);
    EXPECT_EQ(metrics.size(), epochs * kStepsPerEpoch);
    for (size_t i = 0; i < metrics.size(); ++i) EXPECT_EQ(metrics[i].step, i);
    return done;
  }

  static void ExpectLearns(const Digits& digits) {
    const v1::Job done = Finish(cluster_->Submit(JobFile(digits)), digits.epochs);
    EXPECT_GE(done.progress().evaluation_accuracy(), kAccuracy) << digits.sync;
  }

  // Suspends after a few steps. Returns the step of the checkpoint.
  static int64_t SuspendAndResume(const std::string& job) {
    AwaitMoreSteps(*cluster_, job, 20);
    cluster_->Suspend(job);
    const v1::Job stopped = cluster_->AwaitState(job, v1::SUSPENDED);
    cluster_->Resume(job);
    const std::string& checkpoint = stopped.checkpoint();
    return std::stoll(checkpoint.substr(checkpoint.rfind('/') + 1));
  }

  static double MetricOf(const std::string& member, const std::string& name) {
    return MetricTotal(ScrapeMetrics(MetricsUrls(*cluster_).at(member)), name);
  }

  static TrainingCluster* cluster_;
};
TrainingCluster* ConsistencyTest::cluster_ = nullptr;

TEST_F(ConsistencyTest, BspLearns) { ExpectLearns({.sync = "{mode: bsp}"}); }

TEST_F(ConsistencyTest, SspWithThreeStepsOfStalenessLearns) {
  ExpectLearns({.sync = "{mode: ssp, staleness: 3}"});
}

TEST_F(ConsistencyTest, AspLearns) { ExpectLearns({.sync = "{mode: asp, staleness_aware: true}"}); }

TEST_F(ConsistencyTest, AllreduceLearns) { ExpectLearns({.sync = "{mode: allreduce}", .ps = 0}); }

// The gradients have many times the bytes that a link may have in flight. Over shared memory, a
// gradient stays at its worker until the gradients of all workers are there, and workers send in
// different orders.
TEST_F(ConsistencyTest, GradientsBeyondTheCreditOfALinkDoNotWaitForEachOther) {
  for (const char* sync : {"{mode: bsp}", "{mode: bsp, backup_workers: 1}",
                           "{mode: local_sgd, every: 2}", "{mode: allreduce}"}) {
    const std::string job = cluster_->Submit(absl::Substitute(R"(
name: large
model: {zoo: {name: mlp, args: {hidden: "1536,1536,1536,1536"}}}
data: {synthetic: {samples: 64}, batch_size: 6}
training: {steps: 12, optimizer: {sgd: {learning_rate: 1e-3}}}
sync: $0
resources: {workers: {min: 3, max: 3}, ps: $1}
chunk_bytes: 1048576
)",
                                                              sync, strstr(sync, "all") ? 0 : 1));
    EXPECT_EQ(cluster_->AwaitState(job, v1::SUCCEEDED).progress().step(), 12) << sync;
  }
}

TEST_F(ConsistencyTest, SspThatWasSuspendedAndResumedLearns) {
  const Digits digits{.sync = "{mode: ssp, staleness: 1}", .epochs = kManyEpochs};
  const std::string job = cluster_->Submit(JobFile(digits));
  const int64_t step = SuspendAndResume(job);
  EXPECT_GT(step, 0);
  EXPECT_LT(step, digits.epochs * kStepsPerEpoch);
  EXPECT_GE(Finish(job, digits.epochs).progress().evaluation_accuracy(), kAccuracy);
}

TEST_F(ConsistencyTest, LocalSgdLearnsAndGoesOnAfterASuspensionAsIfThereHadBeenNone) {
  const Digits digits{.sync = "{mode: local_sgd, every: 4}", .epochs = kManyEpochs};
  const int64_t last = digits.epochs * kStepsPerEpoch;
  const std::string undisturbed = cluster_->Submit(JobFile(digits));
  EXPECT_GE(Finish(undisturbed, digits.epochs).progress().evaluation_accuracy(), kAccuracy);

  const std::string job = cluster_->Submit(JobFile(digits));
  EXPECT_EQ(SuspendAndResume(job) % 4, 0) << "a round's end";
  Finish(job, digits.epochs);
  EXPECT_EQ(cluster_->Parameters(job, last), cluster_->Parameters(undisturbed, last));
  EXPECT_EQ(cluster_->Metrics(job), cluster_->Metrics(undisturbed));
}

TEST_F(ConsistencyTest, ABackupWorkerSparesTheOthersOneThatStandsStill) {
  constexpr int64_t kStepsWithoutIt = 100;
  constexpr char kMissedSteps[] = "muster_worker_missed_steps_total";
  const Digits digits{.sync = "{mode: bsp, backup_workers: 1}", .workers = 3, .epochs = 10};
  const std::string job = cluster_->Submit(JobFile(digits));
  AwaitMoreSteps(*cluster_, job, 1);
  const v1::Job running = cluster_->Get(job);
  const std::string slow = running.workers(2);
  const pid_t pid = cluster_->members().pid(slow);
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  // The ps updates muster_ps_version only with its reports, so the value at the pause may be old.
  // The first new value was reached during the pause.
  const absl::Time lease_end = absl::Now() + absl::Seconds(4);
  const auto await_version = [&](double at_least) {
    double version = 0;
    do {
      version = MetricOf("ps-0", "muster_ps_version");
    } while (version < at_least && absl::Now() < lease_end);
    return version;
  };
  const auto others_missed = [&] {
    return MetricOf(running.workers(0), kMissedSteps) + MetricOf(running.workers(1), kMissedSteps);
  };
  const double standing = await_version(await_version(0) + 1);
  const double missed_before = others_missed();
  EXPECT_GE(await_version(standing + kStepsWithoutIt), standing + kStepsWithoutIt);
  // Each of these steps needed both other workers. When the third one runs again, any worker may
  // miss a step.
  EXPECT_LE(others_missed() - missed_before, 2);
  ASSERT_EQ(kill(pid, SIGCONT), 0);
  EXPECT_GE(Finish(job, digits.epochs).progress().evaluation_accuracy(), kAccuracy);
  // The ps dropped the gradients that the slow worker sent for finished steps.
  EXPECT_GE(MetricOf(slow, kMissedSteps), kStepsWithoutIt);
  EXPECT_GT(MetricOf("ps-0", "muster_ps_late_pushes_total") +
                MetricOf("ps-1", "muster_ps_late_pushes_total"),
            0);
}

TEST_F(ConsistencyTest, ASuspendedJobWithABackupWorkerGoesOn) {
  const Digits digits{
      .sync = "{mode: bsp, backup_workers: 1}", .workers = 3, .epochs = kManyEpochs};
  const std::string job = cluster_->Submit(JobFile(digits));
  EXPECT_GT(SuspendAndResume(job), 0);
  Finish(job, digits.epochs);
}

}  // namespace
}  // namespace muster::consistency_test
