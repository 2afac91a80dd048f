// Tests the program itself: the configurations that it refuses.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace muster::main_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Ended {
  int code = -1;
  std::string output;
};

// Runs the coordinator with the command prefix `by` until it ends.
Ended RunBy(const std::string& by, const std::string& flags) {
  const std::string command =
      absl::StrCat(by, "services/coordinator/main --metrics=127.0.0.1:0 --http= --state_dir=",
                   ::testing::TempDir(), "/main-state ", flags, " 2>&1");
  FILE* const pipe = popen(command.c_str(), "r");
  Ended ended;
  char buffer[4096];
  while (const size_t bytes = fread(buffer, 1, sizeof(buffer), pipe)) {
    ended.output.append(buffer, bytes);
  }
  ended.code = WEXITSTATUS(pclose(pipe));
  return ended;
}

Ended RunMain(const std::string& flags) { return RunBy("", flags); }

TEST(MainTest, ALeaseOfLessThanASecondIsRefused) {
  const Ended ended = RunMain("--listen=127.0.0.1:0 --lease=900ms");

  EXPECT_EQ(ended.code, 78);
  EXPECT_THAT(ended.output, HasSubstr("--lease: must be at least 1s (is 900ms)"));
}

TEST(MainTest, AConnectionAgeOfLessThanASecondIsRefused) {
  const Ended ended = RunMain("--listen=127.0.0.1:0 --connection_age=0");

  EXPECT_EQ(ended.code, 78);
  EXPECT_THAT(ended.output, HasSubstr("--connection_age: must be at least 1s (is 0)"));
}

TEST(MainTest, ANegativeNumberOfEndedJobsIsRefused) {
  const Ended ended = RunMain("--listen=127.0.0.1:0 --ended_jobs_keep=-1");

  EXPECT_EQ(ended.code, 78);
  EXPECT_THAT(ended.output, HasSubstr("--ended_jobs_keep and --ended_jobs_ttl: must not be neg"));
}

TEST(MainTest, AnUnknownFlagIsAPermanentError) {
  EXPECT_EQ(RunMain("--no_such_flag=1").code, 64);
  EXPECT_EQ(RunMain("--lease=soon").code, 64);
  EXPECT_EQ(RunMain("argument").code, 64);
  EXPECT_EQ(RunMain("--help").code, 1) << "as abseil ends";
}

TEST(MainTest, PrintsItsVersion) {
  const Ended ended = RunMain("--version");

  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.output, StartsWith("muster "));
  EXPECT_THAT(ended.output, HasSubstr("\ncommit "));
}

// A signal ends it even if the parent has blocked signals, as the command line does. The FIFO
// without a writer keeps it waiting.
TEST(MainTest, ASignalEndsARestore) {
  const std::string file = ::testing::TempDir() + "/nobody-writes";
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &term, &before), 0);

  const Ended ended = RunBy("timeout --preserve-status 1 ", "--restore=" + file);

  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(ended.code, 143) << ended.output;
}

TEST(MainTest, AnUnknownKindOfStoreIsRefused) {
  const Ended ended = RunMain("--listen=127.0.0.1:0 --store=redis://a:1");

  EXPECT_EQ(ended.code, 78);
  EXPECT_THAT(ended.output, HasSubstr("--store: 'redis://a:1': no such kind of store"));
}

TEST(MainTest, APageForOtherHostsRequiresCertificates) {
  const Ended ended = RunMain("--listen=127.0.0.1:0 --insecure --http=0.0.0.0:0");

  EXPECT_EQ(ended.code, 78);
  EXPECT_THAT(ended.output, HasSubstr("--http: 0.0.0.0:0 can be reached from beyond this host"));
  EXPECT_THAT(ended.output, HasSubstr("give certificates (--tls=DIR; muster certs init"));
}

TEST(MainTest, AFileThatIsNotABackupIsRefused) {
  const Ended ended = RunMain("--restore=services/coordinator/main");

  EXPECT_EQ(ended.code, 65);
  EXPECT_THAT(ended.output, HasSubstr("is not a Muster backup"));
}

TEST(MainTest, AnOccupiedPortIsNamedWithAdvice) {
  const int taken = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  socklen_t length = sizeof(address);
  ASSERT_EQ(getsockname(taken, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string listen = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));

  const Ended ended = RunMain("--listen=" + listen);

  EXPECT_EQ(ended.code, 200) << "it may be free later, so a retry makes sense";
  EXPECT_THAT(ended.output, HasSubstr("cannot listen on " + listen));
  EXPECT_THAT(ended.output, HasSubstr("another --listen"));
  close(taken);
}

}  // namespace
}  // namespace muster::main_test
