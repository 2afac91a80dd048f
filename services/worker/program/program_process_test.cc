#include "services/worker/program/program_process.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/fleet/log_ring.h"
#include "lib/status/status.h"

namespace muster::program_process_test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

// Runs a shell script as the program of a job.
class ProgramProcessTest : public ::testing::Test {
 protected:
  ProgramProcessTest() {
    std::string folder = ::testing::TempDir() + "/program_process-XXXXXX";
    dir_ = mkdtemp(folder.data());
    for (const char* word : {"sh", "-c"}) spec_.add_command(word);
    (*spec_.mutable_environment())["DIR"] = dir_;
  }

  absl::Status Start(const std::string& script) {
    spec_.add_command(script);
    auto started = ProgramProcess::Start(
        spec_,
        {.job = "digits-1", .socket = "/run/worker-0.sock", .failed = [this](absl::Status why) {
           failure_ = std::move(why);
           has_failed_.Notify();
         }});
    if (started.ok()) program_ = *std::move(started);
    return started.status();
  }

  absl::Status AwaitFailure() {
    has_failed_.WaitForNotification();
    return failure_;
  }

  // Waits until the program has written `count` lines to a file.
  void AwaitLines(const std::string& file, int count) const {
    for (int lines = 0; lines < count;) {
      const std::string text = ReadAll(absl::StrCat(dir_, "/", file));
      lines = static_cast<int>(std::ranges::count(text, '\n'));
    }
  }

  std::string dir_;
  v1::ProgramSpec spec_;
  absl::Status failure_;
  absl::Notification has_failed_;
  std::unique_ptr<ProgramProcess> program_;  // last: its threads use the others
};

TEST_F(ProgramProcessTest, IsRefusedUnlessTheWorkerAllowsIt) {
  v1::JobSpec spec;
  EXPECT_TRUE(CheckProgramAllowed(spec, /*allow_programs=*/false).ok());

  spec.mutable_program()->add_command("python3");

  EXPECT_TRUE(CheckProgramAllowed(spec, /*allow_programs=*/true).ok());
  const absl::Status refused = CheckProgramAllowed(spec, /*allow_programs=*/false);
  EXPECT_TRUE(absl::IsPermissionDenied(refused));
  EXPECT_EQ(ReasonOf(refused), "PROGRAMS_NOT_ALLOWED");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("start it with that flag"));
}

TEST_F(ProgramProcessTest, TheProgramFindsItsWorkerAndLogsThere) {
  const LogRing log;
  (*spec_.mutable_environment())["MUSTER_SUBMIT"] = "1";
  (*spec_.mutable_environment())["COLOR"] = "blue";
  spec_.set_directory("/");
  ASSERT_TRUE(Start(R"sh(echo "$MUSTER_PROGRAM_SOCKET $MUSTER_JOB $MUSTER_SUBMIT $COLOR"; pwd
                         echo "$MUSTER_LOCAL_PROCESS/$MUSTER_LOCAL_PROCESSES" >$DIR/place
                         printf '50%%\rerror \033[31m\n' >&2)sh")
                  .ok());
  AwaitFailure().IgnoreError();

  EXPECT_EQ(ReadAll(dir_ + "/place"), "0/1\n");
  EXPECT_THAT(
      log.Read(std::nullopt, 1 << 20).text,
      AllOf(HasSubstr("program: /run/worker-0.sock digits-1 0 blue\n"), HasSubstr("program: /\n"),
            HasSubstr("program: error \\x1b[31m\n"), Not(HasSubstr("50%"))));
}

TEST_F(ProgramProcessTest, AnExitCodeFailsTheJobWithTheLastErrors) {
  ASSERT_TRUE(Start("seq 40 >&2; echo 'ValueError: the cause' >&2; exit 3").ok());

  const absl::Status failed = AwaitFailure();

  EXPECT_TRUE(absl::IsUnknown(failed)) << failed;
  EXPECT_EQ(ReasonOf(failed), "PROGRAM_FAILED");
  EXPECT_THAT(std::string(failed.message()),
              AllOf(HasSubstr("the program ended with exit code 3; the end of its standard "
                              "error:\n12\n"),
                    EndsWith("\n40\nValueError: the cause\n")));
}

TEST_F(ProgramProcessTest, LongErrorsAreCutAtALine) {
  ASSERT_TRUE(Start("for i in $(seq 30); do printf \"$i %0800d\\n\" 0 >&2; done; exit 1").ok());

  const std::string message(AwaitFailure().message());

  EXPECT_LT(message.size(), 4200);
  EXPECT_THAT(message, HasSubstr("error:\n26 000"));
}

TEST_F(ProgramProcessTest, AnEndWithoutAnErrorFailsTheJobToo) {
  ASSERT_TRUE(Start("exit 0").ok());

  EXPECT_EQ(AwaitFailure().message(),
            "the program ended with exit code 0 before the last step of its job");
}

TEST_F(ProgramProcessTest, ASignalRestartsItThreeTimesWithoutAStep) {
  ASSERT_TRUE(Start("echo run >>$DIR/runs; kill -KILL $$").ok());

  const absl::Status failed = AwaitFailure();

  EXPECT_EQ(ReasonOf(failed), "PROGRAM_FAILED");
  EXPECT_EQ(failed.message(),
            "the program was killed by signal 9 (Killed), after 3 restarts without a finished "
            "step");
  EXPECT_EQ(ReadAll(dir_ + "/runs"), "run\nrun\nrun\nrun\n");
}

TEST_F(ProgramProcessTest, AFinishedStepAllowsThreeMoreRestarts) {
  // The third run waits until a step is finished.
  ASSERT_TRUE(Start(R"sh(echo run >>$DIR/runs
                         while [ $(wc -l <$DIR/runs) = 3 -a ! -e $DIR/step ]; do sleep 0.01; done
                         kill -KILL $$)sh")
                  .ok());
  AwaitLines("runs", 3);
  program_->StepFinished();
  std::ofstream(dir_ + "/step") << "finished";

  AwaitFailure().IgnoreError();

  EXPECT_EQ(ReadAll(dir_ + "/runs"), "run\nrun\nrun\nrun\nrun\nrun\n");
}

TEST_F(ProgramProcessTest, AllProcessesBeginAgainTogether) {
  spec_.set_processes(2);
  ASSERT_TRUE(Start(R"sh(runs=$DIR/runs.$MUSTER_LOCAL_PROCESS
                         echo run >>$runs; [ $(wc -l <$runs) = 2 ] && exit 0
                         until [ -s $DIR/runs.0 ]; do sleep 0.01; done
                         [ $MUSTER_LOCAL_PROCESS = 1 ] && kill -KILL $$
                         while :; do sleep 0.01; done)sh")
                  .ok());

  EXPECT_THAT(std::string(AwaitFailure().message()), HasSubstr("ended with exit code 0"));
  EXPECT_EQ(ReadAll(dir_ + "/runs.0"), "run\nrun\n");
  EXPECT_EQ(ReadAll(dir_ + "/runs.1"), "run\nrun\n");
}

TEST_F(ProgramProcessTest, StopWaitsForAnEndInOrder) {
  ASSERT_TRUE(Start("until [ -e $DIR/end ]; do sleep 0.01; done; echo done >$DIR/done").ok());

  program_->MayEnd();
  std::ofstream(dir_ + "/end") << "END";
  program_->Stop(absl::Seconds(60));

  EXPECT_EQ(ReadAll(dir_ + "/done"), "done\n");
  EXPECT_FALSE(has_failed_.HasBeenNotified());
}

TEST_F(ProgramProcessTest, StopEndsAProgramThatDoesNotEnd) {
  ASSERT_TRUE(Start("trap 'echo term >$DIR/term; exit' TERM; echo run >$DIR/runs; "
                    "while :; do sleep 0.01; done")
                  .ok());
  AwaitLines("runs", 1);

  program_->Stop(absl::Seconds(1));

  EXPECT_EQ(ReadAll(dir_ + "/term"), "term\n");
  EXPECT_FALSE(has_failed_.HasBeenNotified()) << "an end that was asked for is no failure";
}

TEST_F(ProgramProcessTest, ACommandThatCannotRunFailsTheJob) {
  spec_.clear_command();
  spec_.add_command("no-such-python");
  const absl::Status failed = Start("train.py");

  EXPECT_EQ(ReasonOf(failed), "PROGRAM_FAILED");
  EXPECT_EQ(failed.message(),
            "program: no-such-python: cannot run in .: No such file or directory");
}

}  // namespace
}  // namespace muster::program_process_test
