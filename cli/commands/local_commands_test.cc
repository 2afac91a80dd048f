// What commands do to a local cluster of which something runs. Its members are shell scripts.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/commands/session.h"
#include "cli/framework/interrupt.h"
#include "cli/local/cluster_lock.h"
#include "cli/local/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::cli::local_commands_test {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

constexpr char kJobFile[] = R"(
name: line
model: {zoo: {name: linear}}
data: {linear: {slope: 3, intercept: 1, samples: 64}, batch_size: 8}
training: {steps: 40, optimizer: {sgd: {learning_rate: 0.1}}}
)";

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

class LocalCommandsTest : public ::testing::Test {
 protected:
  LocalCommandsTest() {
    std::string folder = ::testing::TempDir() + "/local_commands-XXXXXX";
    dir_ = mkdtemp(folder.data());
    setenv("MUSTER_BIN_DIR", dir_.c_str(), 1);
    for (const char* role : {"coordinator", "ps", "worker"}) {
      const std::string path = absl::StrCat(dir_, "/", role);
      std::ofstream(path) << "#!/bin/sh\necho starts nothing\n";
      fs::permissions(path, fs::perms::owner_all);
    }
  }
  ~LocalCommandsTest() override { StopProcesses({member_}, absl::ZeroDuration()); }

  // With the record of a cluster that has nothing else.
  void StartCoordinator(bool whole) {
    auto member = StartProcess({.argv = {"/bin/sleep", "600"},
                                .log_path = dir_ + "/log",
                                .lifetime = Lifetime::kDetached});
    if (member.ok()) member_ = *member;
    std::ofstream(dir_ + "/cluster.json") << absl::StrCat(
        R"({"address": "127.0.0.1:1", "directory": ")", dir_, R"(", "devices": "cpu", "whole": )",
        whole ? "true" : "false", R"(, "members": [{"name": "coordinator", "pid": )", member_.pid,
        R"(, "start_ticks": )", member_.start_ticks, R"(, "argv": ["/bin/sleep", "600"]}]})");
  }

  // The exit code of `muster words...`, and what it says.
  int Run(std::vector<std::string> words) {
    words.insert(words.begin(), "muster");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    Session session;
    session.interrupt = &interrupt_;
    ::testing::internal::CaptureStderr();
    const int code = RunCommandLine(static_cast<int>(argv.size()), argv.data(), session);
    said_ = ::testing::internal::GetCapturedStderr();
    return code;
  }

  Interrupt interrupt_;
  std::string dir_;
  Process member_;
  std::string said_;
};

TEST_F(LocalCommandsTest, UpStopsWhatAnInterruptedOneHasLeftAndBeginsAnew) {
  StartCoordinator(/*whole=*/false);
  ASSERT_TRUE(member_.alive());

  EXPECT_EQ(Run({"local", "up", "--dir", dir_}), 7) << "these members start nothing";

  EXPECT_FALSE(member_.alive()) << said_;
  EXPECT_THAT(said_, HasSubstr("what an interrupted muster local up has left is stopped"));
  EXPECT_THAT(said_, HasSubstr("the coordinator did not open its port"));
}

TEST_F(LocalCommandsTest, AJobOfItsOwnClusterLeavesOneThatRunsInItsFolderAlone) {
  StartCoordinator(/*whole=*/true);
  const std::string record = ReadAll(dir_ + "/cluster.json");
  const std::string job = dir_ + "/line.yaml";
  std::ofstream(job) << kJobFile;
  std::ofstream(dir_ + "/coordinator.address") << "127.0.0.1:1";

  for (const char* command : {"run", "chaos"}) {
    EXPECT_EQ(Run({command, job, "--dir", dir_}), 6);

    EXPECT_THAT(said_, HasSubstr("[ALREADY_RUNNING]"));
    EXPECT_EQ(ReadAll(dir_ + "/cluster.json"), record);
    EXPECT_EQ(ReadAll(dir_ + "/coordinator.address"), "127.0.0.1:1");
  }
  EXPECT_TRUE(member_.alive());

  const auto other = ClusterLock::Take(dir_, "the test");
  ASSERT_TRUE(other.ok()) << "nobody holds it any more: " << other.status();
  EXPECT_EQ(Run({"run", job, "--dir", dir_}), 6);
  EXPECT_THAT(said_, HasSubstr("[CLUSTER_BUSY]"));
}

TEST_F(LocalCommandsTest, AJobOfItsOwnClusterLeavesTheRecordOfOneThatHasEnded) {
  StartCoordinator(/*whole=*/true);
  StopProcesses({member_}, absl::ZeroDuration());
  const std::string record = ReadAll(dir_ + "/cluster.json");
  const std::string job = dir_ + "/line.yaml";
  std::ofstream(job) << kJobFile;

  EXPECT_EQ(Run({"run", job, "--dir", dir_}), 7) << "these members start nothing";

  EXPECT_THAT(said_, HasSubstr("the coordinator did not open its port"));
  EXPECT_EQ(ReadAll(dir_ + "/cluster.json"), record);
}

}  // namespace
}  // namespace muster::cli::local_commands_test
