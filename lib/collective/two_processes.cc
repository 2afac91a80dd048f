#include "lib/collective/two_processes.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "lib/program/program_path.h"

namespace muster {
namespace {

constexpr int kRanks = 2;
constexpr absl::Duration kTimeout = absl::Seconds(60);

}  // namespace

void RunInTwoProcesses(absl::FunctionRef<void(NcclGroup& group, int rank)> run) {
  if (const char* id = getenv("MUSTER_NCCL_ID")) {  // this is the second process
    auto group = NcclGroup::Open(absl::HexStringToBytes(id), kRanks, kTimeout);
    ASSERT_TRUE(group.ok()) << group.status();
    run(**group, 1);
    return;
  }
  setenv("NCCL_HOSTID", "first", 1);
  auto group = NcclGroup::Create(kRanks, kTimeout);
  ASSERT_TRUE(group.ok()) << group.status();
  const std::string id = absl::BytesToHexString((*group)->id());
  const std::string program = ProgramPath();
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter =
      absl::StrCat("--gtest_filter=", test.test_suite_name(), ".", test.name());
  const pid_t child = fork();
  if (child == 0) {
    setenv("MUSTER_NCCL_ID", id.c_str(), 1);
    setenv("NCCL_HOSTID", "second", 1);
    dup2(STDERR_FILENO, STDOUT_FILENO);  // its result must not be read as this process's
    execl(program.c_str(), program.c_str(), filter.c_str(), nullptr);
    _exit(127);
  }
  run(**group, 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "the other process";
}

}  // namespace muster
