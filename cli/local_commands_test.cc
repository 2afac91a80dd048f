// What commands do to a local cluster of which something runs. Its members are shell scripts.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/interrupt.h"
#include "cli/process.h"
#include "cli/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace muster::cli
