#include "services/worker/program_process.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
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
        spec_, {.job = "digits-1", .socket = "/run/worker-0.sock", .ended = [this] {
                  absl::MutexLock lock(&mu_);
                  ++ends_;
                }});
    if (started.ok()) program_ = *std::move(started);
    return started.status();
  }

  // Waits until the program has ended for the `count`th time.
  void AwaitEnds(int count) {
    absl::MutexLock lock(&mu_);
    auto reached = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ends_ >= count; };
    mu_.Await(absl::Condition(&reached));
  }

  std::string dir_;
  v1::ProgramSpec spec_;
  absl::Mutex mu_;
  int ends_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<ProgramProcess> program_;
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
  AwaitEnds(1);

  EXPECT_EQ(ReadAll(dir_ + "/place"), "0/1\n");
  EXPECT_THAT(
      log.Read(std::nullopt, 1 << 20).text,
      AllOf(HasSubstr("program: /run/worker-0.sock digits-1 0 blue\n"), HasSubstr("program: /\n"),
            HasSubstr("program: error \\x1b[31m\n"), Not(HasSubstr("50%"))));
}

TEST_F(ProgramProcessTest, AnExitCodeFailsTheJobWithTheLastErrors) {
  ASSERT_TRUE(Start("seq 40 >&2; echo 'ValueError: the cause' >&2; exit 3").ok());
  AwaitEnds(1);

  const absl::Status failed = program_->Check();

  EXPECT_TRUE(absl::IsInvalidArgument(failed)) << failed;
  EXPECT_EQ(ReasonOf(failed), "PROGRAM_FAILED");
  EXPECT_THAT(std::string(failed.message()),
              AllOf(HasSubstr("the program ended with exit code 3; the end of its standard "
                              "error:\n12\n"),
                    EndsWith("\n40\nValueError: the cause\n")));
}

TEST_F(ProgramProcessTest, LongErrorsAreCutAtALine) {
  ASSERT_TRUE(Start("for i in $(seq 30); do printf \"$i %0800d\\n\" 0 >&2; done; exit 1").ok());
  AwaitEnds(1);

  const std::string message(program_->Check().message());

  EXPECT_LT(message.size(), 4200);
  EXPECT_THAT(message, HasSubstr("error:\n26 000"));
}

TEST_F(ProgramProcessTest, AnEndWithoutAnErrorFailsTheJobToo) {
  ASSERT_TRUE(Start("exit 0").ok());
  AwaitEnds(1);

  EXPECT_EQ(program_->Check().message(),
            "the program ended with exit code 0 before the last step of its job");
}

TEST_F(ProgramProcessTest, ASignalRestartsItThreeTimesWithoutAStep) {
  ASSERT_TRUE(Start("echo run >>$DIR/runs; kill -KILL $$").ok());
  for (int end = 1; end <= 2; ++end) {
    AwaitEnds(end);
    ASSERT_TRUE(program_->Check().ok());
  }
  program_->StepFinished();
  for (int end = 3; end <= 5; ++end) {
    AwaitEnds(end);
    ASSERT_TRUE(program_->Check().ok()) << "a finished step counts anew";
  }
  AwaitEnds(6);

  const absl::Status failed = program_->Check();

  EXPECT_EQ(ReasonOf(failed), "PROGRAM_FAILED");
  EXPECT_EQ(failed.message(),
            "the program was killed by signal 9 (Killed), after 3 restarts without a finished "
            "step");
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
  AwaitEnds(1);
  EXPECT_TRUE(program_->Check().ok());
  AwaitEnds(2);

  EXPECT_THAT(std::string(program_->Check().message()), HasSubstr("ended with exit code 0"));
}

TEST_F(ProgramProcessTest, StopWaitsForAnEndInOrder) {
  ASSERT_TRUE(Start("until [ -e $DIR/end ]; do sleep 0.01; done; echo done >$DIR/done").ok());
  EXPECT_TRUE(program_->Check().ok());

  std::ofstream(dir_ + "/end") << "END";
  program_->Stop(absl::Seconds(60));

  EXPECT_EQ(ReadAll(dir_ + "/done"), "done\n");
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
