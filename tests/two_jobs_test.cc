// Two jobs share their ps. A ps that dies costs both jobs a recovery; a worker only its own job.
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/substitute.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/metrics_page.h"
#include "tests/training_cluster.h"

namespace muster::two_jobs_test {
namespace {

using ::testing::Not;
using ::testing::UnorderedElementsAreArray;

const int kSteps = Lengthened(1200);
constexpr int kCheckpointSteps = 150;

std::string Job() {
  return absl::Substitute(R"(
name: one-of-two
model: {zoo: {name: gpt, args: {layers: 1, heads: 2, channels: 32, context: 32, dropout: 0.1}}}
data: {text: {path: examples/data/licences}, batch_size: 4, seed: 1}
training: {steps: $0, optimizer: {adamw: {learning_rate: 1e-3}}, seed: 9}
resources: {workers: {min: 2, max: 2}, ps: 2}
checkpoint: {every_steps: $1, keep_last: 0}
)",
                          kSteps, kCheckpointSteps);
}

TEST(TwoJobsTest, APsIsLostByBothAndAWorkerByOneOfThem) {
  TrainingCluster cluster({.ps = 2, .workers = 4, .ps_threads = 1});
  const std::string alone = cluster.Run(Job());
  const std::vector<std::string> jobs = {cluster.Submit(Job()), cluster.Submit(Job())};
  for (const std::string& job : jobs) {
    cluster.Await(job,
                  [](const v1::Job& seen) { return CheckpointStepOf(seen) >= kCheckpointSteps; });
  }
  const v1::Job struck = cluster.Get(jobs[0]), other = cluster.Get(jobs[1]);
  ASSERT_THAT(struck.ps(), UnorderedElementsAreArray(other.ps()));
  for (const std::string& worker : struck.workers()) {
    ASSERT_THAT(other.workers(), Not(testing::Contains(worker)));
  }

  ASSERT_TRUE(cluster.members().Kill("ps-1", SIGKILL).ok());
  ASSERT_TRUE(cluster.members().Restart("ps-1").ok());
  for (const std::string& job : jobs) {
    const v1::Job again = cluster.Await(job, [](const v1::Job& seen) {
      return seen.state() == v1::RUNNING && seen.generation() == 2;
    });
    EXPECT_EQ(again.recovery().count(), 1);
    EXPECT_GE(again.recovery().resumed_step(), kCheckpointSteps);
    EXPECT_EQ(again.recovery().resumed_step() % kCheckpointSteps, 0);
  }
  for (const std::string& job : jobs) AwaitMoreSteps(cluster, job, 100);
  ASSERT_EQ(cluster.Get(jobs[0]).state(), v1::RUNNING);
  ASSERT_EQ(cluster.Get(jobs[1]).state(), v1::RUNNING);
  ASSERT_TRUE(cluster.members().Kill(struck.workers(0), SIGKILL).ok());
  ASSERT_TRUE(cluster.members().Restart(struck.workers(0)).ok());

  const v1::Job twice = cluster.AwaitState(jobs[0], v1::SUCCEEDED);
  const v1::Job once = cluster.AwaitState(jobs[1], v1::SUCCEEDED);
  EXPECT_EQ(twice.recovery().count(), 2);
  EXPECT_EQ(twice.generation(), 3);
  EXPECT_EQ(once.recovery().count(), 1);
  EXPECT_EQ(once.generation(), 2);
  for (const std::string& job : jobs) {
    EXPECT_EQ(cluster.Hashes(job, kSteps), cluster.Hashes(alone, kSteps));
    EXPECT_EQ(cluster.Metrics(job).size(), kSteps);
  }
}

}  // namespace
}  // namespace muster::two_jobs_test
