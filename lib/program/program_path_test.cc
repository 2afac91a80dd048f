// This program is its own child: started with the argument "where" it prints ProgramPath().
#include "lib/program/program_path.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::program_path_test {
namespace {

namespace fs = std::filesystem;

constexpr char kLoader[] = "/lib64/ld-linux-x86-64.so.2";

// Returns the output of `path` when it is run with `argv`.
std::string Printed(const std::string& path, std::vector<std::string> argv) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    std::vector<char*> pointers;
    for (std::string& argument : argv) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    execv(path.c_str(), pointers.data());
    _exit(127);
  }
  close(ends[1]);
  std::string printed;
  for (char c; read(ends[0], &c, 1) == 1;) printed.push_back(c);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? printed : "it failed";
}

std::string Self() { return fs::read_symlink("/proc/self/exe").string(); }

TEST(ProgramPathTest, IsTheProgramUnderAnyName) {
  EXPECT_EQ(Printed(Self(), {"muster", "where"}), Self());
  EXPECT_EQ(Printed(Self(), {"./no/such/path", "where"}), Self());
  EXPECT_EQ(Printed(Self(), {"/no/such/path", "where"}), Self());
  EXPECT_EQ(Printed(Self(), {Self(), "where"}), Self());
}

TEST(ProgramPathTest, FollowsLinks) {
  const fs::path link = fs::path(testing::TempDir()) / "linked_program";
  fs::remove(link);
  fs::create_symlink(Self(), link);
  EXPECT_EQ(Printed(link, {link, "where"}), Self());
}

TEST(ProgramPathTest, UnderABundlesLoaderItIsTheScript) {
  if (!fs::exists(kLoader)) GTEST_SKIP() << "no " << kLoader << " here";
  const fs::path script = fs::canonical(testing::TempDir()) / "wrapper";
  std::ofstream(script) << "#!/bin/sh\nexec " << kLoader << " --argv0 \"$0\" " << Self()
                        << " \"$@\"\n";
  fs::permissions(script, fs::perms::owner_all);
  EXPECT_EQ(Printed(script, {script, "where"}), script);
}

}  // namespace
}  // namespace muster::program_path_test

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "where") {
    std::fputs(muster::ProgramPath().c_str(), stdout);
    return 0;
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
