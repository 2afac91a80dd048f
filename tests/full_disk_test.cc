// The disk of the coordinator's state folder fills up in the middle of a job: the job says so,
// loses nothing and goes on when there is room.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/training_cluster.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 1500;  // a few seconds

std::string Job() {
  return R"(
name: net
model: {zoo: {name: gpt, args: {layers: 2, heads: 2, channels: 64, context: 32}}}
data: {text: {path: examples/data/licences}, batch_size: 8, seed: 1}
training: {steps: )" +
         std::to_string(kSteps) + R"(, optimizer: {adam: {learning_rate: 1e-3}}, seed: 9}
resources: {workers: {min: 2, max: 2}, ps: 1}
checkpoint: {every_steps: 100}
)";
}

TEST(FullDiskTest, AJobWaitsForRoomAndLosesNothing) {
  const std::string library = std::string(getenv("TEST_SRCDIR")) + "/" + getenv("TEST_WORKSPACE") +
                              "/tests/libfull_disk.so";
  ASSERT_EQ(access(library.c_str(), R_OK), 0) << library;
  const std::string full = ::testing::TempDir() + "/full";
  setenv("MUSTER_TEST_FULL_DISK", full.c_str(), 1);
  setenv("LD_PRELOAD", library.c_str(), 1);
  TrainingCluster cluster({.ps = 1, .workers = 2, .ps_threads = 1});
  unsetenv("LD_PRELOAD");
  const std::string undisturbed = cluster.Run(Job());
  const std::string job = cluster.Submit(Job());
  cluster.AwaitStep(job, 20);

  std::ofstream(full).close();
  const v1::Job stuck = cluster.Await(job, [](const v1::Job& now) {
    return absl::StrContains(now.message(), "cannot write to its state folder");
  });
  EXPECT_EQ(stuck.state(), v1::RUNNING);
  EXPECT_THAT(stuck.message(), HasSubstr("goes on when there is room"));

  ASSERT_EQ(unlink(full.c_str()), 0);
  cluster.AwaitState(job, v1::SUCCEEDED);

  EXPECT_EQ(cluster.Metrics(job), cluster.Metrics(undisturbed));
  EXPECT_EQ(cluster.Parameters(job, kSteps), cluster.Parameters(undisturbed, kSteps));
}

}  // namespace
}  // namespace muster
