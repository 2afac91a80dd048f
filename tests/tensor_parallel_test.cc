// The workers of a job divide its model among their devices. Checkpoints start jobs of any other
// degree, kills and suspensions leave the bits, and only workers with the right devices run the
// job.
#include <signal.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "tests/training_cluster.h"

namespace muster::tensor_parallel_test {
namespace {

using ::testing::HasSubstr;

constexpr int kWorkers = 2;

std::string Job(int degree, int64_t steps, const std::string& checkpoint = "{}") {
  return absl::Substitute(R"(
name: ranks
model:
  zoo:
    name: gpt
    args: {layers: 2, heads: 6, channels: 48, context: 16, vocabulary: 257, dropout: 0.1}
data: {text: {path: examples/data/licences, holdout: 0.02}, batch_size: 10, seed: 3}
training:
  steps: $1
  optimizer: {adamw: {learning_rate: 1e-3}}
  seed: 5
resources: {workers: {min: $3, max: $3}, ps: 2, tensor_parallel: $0}
checkpoint: $2
)",
                          degree, steps, checkpoint, kWorkers);
}

class TensorParallelTest : public testing::Test {
 protected:
  // All jobs of this file share one set of processes.
  static void SetUpTestSuite() {
    cluster_ = new TrainingCluster({.ps = 2, .workers = kWorkers, .devices = "cpu:4"});
  }
  static void TearDownTestSuite() { delete cluster_; }

  void TearDown() override { EXPECT_TRUE(cluster_->members().Heal().ok()); }

  static TrainingCluster* cluster_;
};

TrainingCluster* TensorParallelTest::cluster_ = nullptr;

double LastLoss(const std::vector<StepMetrics>& metrics) { return metrics.back().loss; }

// Degree 2 on four devices has two replicas, degree 1 has four.
TEST_F(TensorParallelTest, CheckpointsOfAnyDegreeStartJobsOfAnyOther) {
  const std::string uninterrupted = cluster_->Run(Job(/*degree=*/1, /*steps=*/90));
  std::string job = cluster_->Run(Job(/*degree=*/2, 30));
  job = cluster_->Run(Job(/*degree=*/1, 60, absl::StrCat("{resume_from: ", job, "}")));
  job = cluster_->Run(Job(/*degree=*/4, 90, absl::StrCat("{resume_from: ", job, "}")));
  const double loss = LastLoss(cluster_->Metrics(uninterrupted));
  EXPECT_NEAR(LastLoss(cluster_->Metrics(job)), loss, 1e-4 * loss);
  // Names and sizes are equal.
  EXPECT_LT(
      LargestDifference(cluster_->Parameters(job, 90), cluster_->Parameters(uninterrupted, 90)),
      0.01);
}

TEST_F(TensorParallelTest, KillsAndSuspensionsLeaveTheBits) {
  constexpr int64_t kSteps = 400;
  const std::string long_job = Job(/*degree=*/2, kSteps, "{every_steps: 50, every: 0s}");
  const std::map<std::string, std::string> calm = cluster_->Hashes(cluster_->Run(long_job), kSteps);
  const std::string job = cluster_->Submit(long_job);
  cluster_->AwaitStep(job, 20);
  ASSERT_TRUE(cluster_->members().Kill("worker-0", SIGKILL).ok());
  ASSERT_TRUE(cluster_->members().Heal().ok());
  cluster_->AwaitStep(job, 70);
  cluster_->Suspend(job);
  cluster_->AwaitState(job, v1::SUSPENDED);
  cluster_->Resume(job);
  cluster_->AwaitStep(job, 120);
  ASSERT_TRUE(cluster_->members().Restart("ps-0").ok());
  cluster_->AwaitStep(job, 150);
  ASSERT_TRUE(cluster_->members().Restart("coordinator").ok());
  cluster_->AwaitStep(job, 200);
  ASSERT_TRUE(cluster_->members().Kill("worker-1", SIGTERM).ok());
  EXPECT_TRUE(cluster_->members().AwaitExit("worker-1", absl::Minutes(1)).ok());
  ASSERT_TRUE(cluster_->members().Heal().ok());
  cluster_->AwaitState(job, v1::SUCCEEDED);
  EXPECT_EQ(cluster_->Hashes(job, kSteps), calm);
}

TEST_F(TensorParallelTest, TheTimeInCollectivesIsReported) {
  const std::string job = cluster_->Submit(Job(/*degree=*/4, /*steps=*/100'000));
  cluster_->AwaitStep(job, 20);
  v1::ReadJobTimingRequest request;
  request.set_name(absl::StrCat("jobs/", job));
  v1::ReadJobTimingResponse timing;
  grpc::ClientContext context;
  ASSERT_TRUE(cluster_->jobs().ReadJobTiming(&context, request, &timing).ok());
  ASSERT_EQ(timing.members_size(), kWorkers);
  for (const v1::MemberTiming& member : timing.members()) {
    EXPECT_GT(member.timing().tensor_parallel_seconds(), 0);
    EXPECT_LT(member.timing().tensor_parallel_seconds(), member.timing().compute_seconds());
  }
  cluster_->Suspend(job);
  cluster_->AwaitState(job, v1::SUSPENDED);
}

TEST_F(TensorParallelTest, AJobWaitsForWorkersWithDevicesForIt) {
  const std::string job = cluster_->Submit(Job(/*degree=*/3, /*steps=*/10));
  const v1::Job waiting = cluster_->Await(
      job, [](const v1::Job& now) { return now.waiting().reason() == "WAITS_FOR_WORKERS"; });
  EXPECT_THAT(waiting.waiting().message(),
              HasSubstr("0 attached whose devices fit resources.tensor_parallel (those of 2 do "
                        "not)"));
  cluster_->Suspend(job);
  cluster_->AwaitState(job, v1::SUSPENDED);
}

}  // namespace
}  // namespace muster::tensor_parallel_test
