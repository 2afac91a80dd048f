// Tests muster launch. Shell scripts take the place of ps and workers, the test that of the
// coordinator.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/commands/session.h"
#include "cli/framework/interrupt.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/muster/v1/coordinator.grpc.pb.h"

namespace muster::cli::launch_command_test {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

// Lists the members that have written their process id into a folder, and the jobs of the test.
class Coordinator final : public v1::FleetService::Service, public v1::JobService::Service {
 public:
  explicit Coordinator(const std::string& pids) : pids_(pids) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<v1::FleetService::Service*>(this));
    builder.RegisterService(static_cast<v1::JobService::Service*>(this));
    server_ = builder.BuildAndStart();
  }

  grpc::Status ListMembers(grpc::ServerContext*, const v1::ListMembersRequest*,
                           v1::ListMembersResponse* list) override {
    for (const auto& file : fs::directory_iterator(pids_)) {
      int pid = 0;
      if (!absl::SimpleAtoi(ReadAll(file.path()), &pid)) continue;
      v1::Member& member = *list->add_members();
      member.set_name(file.path().filename());
      member.set_pid(pid);
    }
    return grpc::Status::OK;
  }

  // The job exists as soon as a program has made the file "submitted".
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*,
                        v1::ListJobsResponse* list) override {
    if (fs::exists(pids_ + "/../submitted")) *list->add_jobs() = job;
    return grpc::Status::OK;
  }

  grpc::Status WatchJob(grpc::ServerContext*, const v1::WatchJobRequest*,
                        grpc::ServerWriter<v1::WatchJobResponse>* stream) override {
    v1::WatchJobResponse update;
    *update.mutable_job() = job;
    stream->Write(update);
    return grpc::Status::OK;
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  v1::Job job;

 private:
  const std::string pids_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

constexpr char kMember[] = R"(#!/bin/sh
for flag; do
  case $flag in
    --name=*) name=${flag#--name=};;
    --program_socket=*) socket=${flag#--program_socket=};;
  esac
done
echo "$socket" >"$LAUNCH_TEST/$name.socket"
echo $$ >"$LAUNCH_TEST/new.$name" && mv "$LAUNCH_TEST/new.$name" "$LAUNCH_TEST/pids/$name"
exec sleep 600
)";

class LaunchCommandTest : public ::testing::Test {
 protected:
  LaunchCommandTest() {
    std::string folder = ::testing::TempDir() + "/launch_command-XXXXXX";
    dir_ = mkdtemp(folder.data());
    setenv("LAUNCH_TEST", dir_.c_str(), 1);
    setenv("MUSTER_BIN_DIR", dir_.c_str(), 1);
    setenv("MUSTER_TLS", "/certificates/of/another/cluster", 1);
    unsetenv("OMP_NUM_THREADS");
    fs::create_directories(dir_ + "/pids");
    coordinator_ = std::make_unique<Coordinator>(dir_ + "/pids");
    WriteScript("coordinator", absl::StrCat("#!/bin/sh\necho ", coordinator_->address(),
                                            " >$LAUNCH_TEST/run/coordinator.address\n"
                                            "exec sleep 600\n"));
    WriteScript("ps", kMember);
    WriteScript("worker", kMember);
  }
  ~LaunchCommandTest() override {
    // A killed process may need a moment to end.
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (!Survivors().empty() && absl::Now() < deadline) {
    }
    EXPECT_THAT(Survivors(), IsEmpty());
  }

  void WriteScript(const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(dir_, "/", name);
    std::ofstream(path) << text;
    fs::permissions(path, fs::perms::owner_all);
  }

  // Returns the exit code of `muster launch options... -- sh -c script`.
  int Run(std::vector<std::string> options, const std::string& script) {
    std::vector<std::string> words = {"muster", "launch", "--out", dir_ + "/run"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"--", "sh", "-c", script});
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    Session session;
    session.interrupt = &interrupt_;
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int code = RunCommandLine(static_cast<int>(argv.size()), argv.data(), session);
    err_ = ::testing::internal::GetCapturedStderr();
    out_ = ::testing::internal::GetCapturedStdout();
    return code;
  }

  // The lines that the programs wrote to standard output, in any order.
  std::vector<std::string> OutLines() const {
    return absl::StrSplit(out_, '\n', absl::SkipEmpty());
  }

  // Returns the processes with this test's folder in their environment. Killed orphans that init
  // has not reaped yet have no environment.
  std::vector<std::string> Survivors() const {
    std::vector<std::string> found;
    for (const auto& process : fs::directory_iterator("/proc")) {
      const std::string pid = process.path().filename();
      if (pid == absl::StrCat(getpid())) continue;
      const std::string environment = ReadAll("/proc/" + pid + "/environ");
      if (!absl::StrContains(environment, absl::StrCat("LAUNCH_TEST=", dir_))) continue;
      found.push_back(absl::StrCat(pid, ": ", ReadAll("/proc/" + pid + "/cmdline")));
    }
    return found;
  }

  Interrupt interrupt_;  // before the threads of gRPC
  std::string dir_, out_, err_;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(LaunchCommandTest, APlainProgramHasItsSocketServerAndNoPrefix) {
  EXPECT_EQ(Run({}, R"sh(echo "$MUSTER_SERVER $MUSTER_SUBMIT $MUSTER_LOCAL_PROCESSES"
                       echo "tls '$MUSTER_TLS' ${MASTER_PORT-none}"
                       [ "$MUSTER_PROGRAM_SOCKET" = "$(cat $LAUNCH_TEST/worker-0.socket)" ] || exit 1
                       [ -d "$MUSTER_MODEL_DIR" ] && echo "$MUSTER_LAUNCH_ID" | grep -cE '^.{36}$')sh"),
            0)
      << err_;

  EXPECT_EQ(out_, absl::StrCat(coordinator_->address(), " 1 1\ntls '' none\n1\n"));
  EXPECT_EQ(ReadAll(dir_ + "/run/programs/worker-0.log"), out_);
  const std::string socket = ReadAll(dir_ + "/worker-0.socket");
  EXPECT_LE(socket.size(), 108) << "with its end of line";
  EXPECT_FALSE(fs::exists(fs::path(socket).parent_path())) << "its folder was not removed";
}

TEST_F(LaunchCommandTest, SeveralProgramsHavePrefixesAndOneSubmits) {
  setenv("OMP_NUM_THREADS", "3", 1);

  EXPECT_EQ(Run({"--workers", "2", "--local-processes", "2"},
                R"sh(echo "submit $MUSTER_SUBMIT, $MUSTER_LOCAL_PROCESS of $MUSTER_LOCAL_PROCESSES"
                   echo "$OMP_NUM_THREADS threads, $MUSTER_WORKERS workers, $MASTER_ADDR" >&2)sh"),
            0)
      << err_;

  EXPECT_THAT(OutLines(), UnorderedElementsAre(
                              "[worker-0/0] submit 1, 0 of 2", "[worker-0/1] submit 0, 1 of 2",
                              "[worker-1/0] submit 0, 0 of 2", "[worker-1/1] submit 0, 1 of 2"));
  EXPECT_THAT(err_, HasSubstr("[worker-1/1] 3 threads, 2 workers, 127.0.0.1\n"));
  EXPECT_EQ(ReadAll(dir_ + "/run/programs/worker-1-0.log"),
            "submit 0, 0 of 2\n3 threads, 2 workers, 127.0.0.1\n");
}

TEST_F(LaunchCommandTest, TheFirstErrorIsShownLastAndIsTheExitCode) {
  EXPECT_EQ(Run({"--workers", "2"},
                R"sh(if [ "$MUSTER_SUBMIT" = 0 ]; then
                     seq 1 40 >&2; echo 'ValueError: the cause' >&2; exit 3
                   fi
                   trap 'echo "error after the cause" >&2; exit 4' TERM
                   while :; do sleep 0.01; done)sh"),
            3);

  EXPECT_THAT(err_, HasSubstr("[worker-0] error after the cause\n"));
  EXPECT_THAT(err_, HasSubstr("muster: worker-1 ended with exit code 3; the end of its standard "
                              "error:\n12\n13\n"));
  EXPECT_THAT(err_, EndsWith("\n40\nValueError: the cause\n"));
}

TEST_F(LaunchCommandTest, AProgramThatASignalKilledIsStartedAgain) {
  EXPECT_EQ(Run({"--workers", "2"},
                R"sh([ "$MUSTER_SUBMIT" = 1 ] && exit 0
                   echo run >>$LAUNCH_TEST/runs
                   [ $(wc -l <$LAUNCH_TEST/runs) = 3 ] || kill -KILL $$)sh"),
            0)
      << err_;

  EXPECT_THAT(err_, HasSubstr("worker-1 was killed by signal 9 (Killed); restart 1 of 3\n"));
  EXPECT_THAT(err_, HasSubstr("worker-1 was killed by signal 9 (Killed); restart 2 of 3\n"));
}

TEST_F(LaunchCommandTest, AllProcessesOfAWorkerBeginAgainTogether) {
  EXPECT_EQ(Run({"--local-processes", "2"},
                R"sh(echo run >>$LAUNCH_TEST/runs.$MUSTER_LOCAL_PROCESS
                   [ $(wc -l <$LAUNCH_TEST/runs.$MUSTER_LOCAL_PROCESS) = 2 ] && exit 0
                   until [ -s $LAUNCH_TEST/runs.0 ]; do sleep 0.01; done
                   [ $MUSTER_LOCAL_PROCESS = 1 ] && kill -KILL $$
                   while :; do sleep 0.01; done)sh"),
            0)
      << err_;
}

TEST_F(LaunchCommandTest, ASignalFailsTheLaunchWhenTheRestartsAreUsedUp) {
  EXPECT_EQ(Run({"--restarts", "1"}, "echo died >&2; kill -SEGV $$"), 128 + SIGSEGV);

  EXPECT_THAT(err_, HasSubstr("restart 1 of 1\n"));
  EXPECT_THAT(err_, EndsWith("muster: worker-0 was killed by signal 11 (Segmentation fault); the "
                             "end of its standard error:\ndied\n"));
}

TEST_F(LaunchCommandTest, ACommandThatDoesNotExistIsAnError) {
  const std::string run = dir_ + "/run";
  const std::vector<std::string> words = {"muster", "launch", "--out",
                                          run,      "--",     "no-such-program"};
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  Session session;
  session.interrupt = &interrupt_;
  ::testing::internal::CaptureStderr();

  EXPECT_EQ(RunCommandLine(static_cast<int>(argv.size()), argv.data(), session), 3);

  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("no-such-program: cannot run in .: No such file or directory"));
}

TEST_F(LaunchCommandTest, CtrlCReachesTheProgramsFirst) {
  std::thread presser([this] {
    while (ReadAll(dir_ + "/ready").empty()) {
    }
    kill(getpid(), SIGINT);
  });
  // The program has a child, which must not outlive it.
  EXPECT_EQ(Run({}, R"sh(trap 'echo interrupted; exit 0' INT; sleep 600 &
                       echo yes >$LAUNCH_TEST/ready; while :; do sleep 0.01; done)sh"),
            128 + SIGINT);
  presser.join();

  EXPECT_EQ(out_, "interrupted\n");
}

TEST_F(LaunchCommandTest, ADaemonThatDiesIsStartedAgain) {
  EXPECT_EQ(Run({}, R"sh(killed=$(cat $LAUNCH_TEST/pids/ps-0); kill -KILL $killed
                       while [ "$(cat $LAUNCH_TEST/pids/ps-0)" = $killed ]; do sleep 0.01; done)sh"),
            0)
      << err_;

  EXPECT_THAT(err_, AllOf(HasSubstr("muster: ps-0 was killed by signal 9; restart 1 of 3; its log"),
                          HasSubstr("/run/logs/ps-0.log")));
}

TEST_F(LaunchCommandTest, ADaemonThatDiesTooOftenEndsTheLaunch) {
  EXPECT_EQ(Run({"--restarts", "0"}, R"sh(kill -KILL $(cat $LAUNCH_TEST/pids/worker-0)
                                        while :; do sleep 0.01; done)sh"),
            7);

  EXPECT_THAT(err_, HasSubstr("muster: worker-0 has ended, after 0 restarts; see "));
}

TEST_F(LaunchCommandTest, PrintsTheOutcomeOfTheJob) {
  coordinator_->job.set_name("jobs/digits-1");
  coordinator_->job.set_state(v1::SUCCEEDED);
  coordinator_->job.mutable_progress()->set_step(200);
  coordinator_->job.mutable_progress()->set_first_loss(2.3);
  coordinator_->job.mutable_progress()->set_loss(0.25);

  EXPECT_EQ(Run({}, "touch $LAUNCH_TEST/submitted"), 0) << err_;

  EXPECT_THAT(err_, AllOf(HasSubstr("SUCCEEDED  digits-1  200 steps"), HasSubstr("0.25")));
}

TEST_F(LaunchCommandTest, AFailedJobIsAnErrorEvenIfItsProgramsSucceed) {
  coordinator_->job.set_name("jobs/digits-1");
  coordinator_->job.set_state(v1::FAILED);
  coordinator_->job.set_reason("PS_LOST");

  EXPECT_EQ(Run({}, "touch $LAUNCH_TEST/submitted"), 1) << err_;

  EXPECT_THAT(err_, HasSubstr("PS_LOST"));
}

TEST_F(LaunchCommandTest, TakesNoFolderWithAJobThatStillRuns) {
  coordinator_->job.set_name("jobs/digits-1");
  coordinator_->job.set_state(v1::RUNNING);
  std::ofstream(dir_ + "/submitted") << "earlier";

  EXPECT_EQ(Run({}, "echo started"), 6);

  EXPECT_THAT(err_, HasSubstr("digits-1 in "));
  EXPECT_THAT(err_, HasSubstr(" is RUNNING; use another folder (--out)"));
  EXPECT_EQ(out_, "");
}

}  // namespace
}  // namespace muster::cli::launch_command_test
