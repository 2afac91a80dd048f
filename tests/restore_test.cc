// Restores a backup of the store under a job that has continued since.
// docs/operations/backup_and_restore.md has the guarantees.
#include <signal.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/member_exit.h"
#include "tests/training_cluster.h"

namespace muster::restore_test {
namespace {

constexpr int kSteps = 2400;

std::string Job() {
  return absl::Substitute(R"(
name: restored
model: {zoo: {name: gpt, args: {layers: 1, heads: 2, channels: 32, context: 32, dropout: 0.1}}}
data: {text: {path: examples/data/licences}, batch_size: 6, seed: 1}
training: {steps: $0, optimizer: {adamw: {learning_rate: 1e-3}}, seed: 9}
resources: {workers: {min: 2, max: 2}, ps: 2}
checkpoint: {every_steps: 250, keep_last: 0}
)",
                          kSteps);
}

int Muster(const std::string& arguments) {
  const int status = system(absl::StrCat("cli/muster ", arguments).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(RestoreTest, AJobGoesOnFromACheckpointThatTheBackupDoesNotKnow) {
  TrainingCluster cluster({.ps = 2, .workers = 2, .ps_threads = 1});
  const std::string undisturbed = cluster.Run(Job());
  const std::string job = cluster.Submit(Job());
  const std::string file = ::testing::TempDir() + "/backup.muster";
  cluster.Await(job, [](const v1::Job& seen) { return CheckpointStepOf(seen) >= 250; });
  ASSERT_EQ(Muster(absl::StrCat("--server ", cluster.members().address(), " admin backup ", file)),
            0);
  const v1::Job later =
      cluster.Await(job, [](const v1::Job& seen) { return CheckpointStepOf(seen) >= 1250; });

  ASSERT_TRUE(cluster.members().Kill("coordinator", SIGKILL).ok());
  const std::vector<std::string> members = {"ps-0", "ps-1", "worker-0", "worker-1"};
  std::vector<std::unique_ptr<MemberExit>> ends;
  for (const std::string& member : members) {
    ends.push_back(std::make_unique<MemberExit>(&cluster, member));
  }
  ASSERT_EQ(
      Muster(absl::StrCat("admin restore ", file, " --force --state-dir ", cluster.state_dir())),
      0);
  ASSERT_TRUE(cluster.members().Restart("coordinator").ok()) << cluster.Logs();
  for (const auto& end : ends) end->Expect(77);
  for (const std::string& member : members) {
    ASSERT_TRUE(cluster.members().Restart(member).ok()) << member;
  }

  const v1::Job done = cluster.AwaitState(job, v1::SUCCEEDED);
  EXPECT_EQ(done.recovery().count(), 1);
  EXPECT_GE(done.recovery().resumed_step(), CheckpointStepOf(later));
  EXPECT_EQ(cluster.Hashes(job, kSteps), cluster.Hashes(undisturbed, kSteps));
}

}  // namespace
}  // namespace muster::restore_test
