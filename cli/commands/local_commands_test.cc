// Tests commands on a local cluster of which some processes run. Its members are shell scripts.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/commands/session.h"
#include "cli/framework/interrupt.h"
#include "cli/local/cluster_lock.h"
#include "cli/local/local_cluster.h"
#include "cli/local/process.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/muster/v1/coordinator.grpc.pb.h"

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

// A coordinator with one running job.
class OneRunningJob final : public v1::JobService::Service {
 public:
  OneRunningJob() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*,
                        v1::ListJobsResponse* list) override {
    v1::Job& job = *list->add_jobs();
    job.set_name("jobs/line-1");
    job.set_state(v1::RUNNING);
    job.mutable_progress()->set_step(120);
    job.mutable_progress()->set_total_steps(200);
    return grpc::Status::OK;
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

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

  // Starts a process and records it as the only member of a cluster.
  void StartCoordinator(bool whole, const std::string& address = "127.0.0.1:1") {
    auto member = StartProcess({.argv = {"/bin/sleep", "600"},
                                .log_path = dir_ + "/log",
                                .lifetime = Lifetime::kDetached});
    if (member.ok()) member_ = *member;
    std::ofstream(dir_ + "/cluster.json") << absl::StrCat(
        R"({"address": ")", address, R"(", "directory": ")", dir_,
        R"(", "devices": "cpu", "whole": )", whole ? "true" : "false",
        R"(, "members": [{"name": "coordinator", "pid": )", member_.pid, R"(, "start_ticks": )",
        member_.start_ticks, R"(, "argv": ["/bin/sleep", "600"]}]})");
  }

  // Makes the cluster the default one, which commands find without options.
  void MakeDefault() {
    const std::string home = dir_ + "/home";
    setenv("HOME", home.c_str(), 1);
    setenv("XDG_CONFIG_HOME", (home + "/config").c_str(), 1);
    fs::create_directories(home + "/.muster");
    fs::create_directory_symlink(dir_, DefaultLocalDir());
  }

  // Returns the exit code of `muster words...`. said_ has its standard error.
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

TEST_F(LocalCommandsTest, UpStopsTheProcessesOfAnInterruptedUpAndStartsANewCluster) {
  StartCoordinator(/*whole=*/false);
  ASSERT_TRUE(member_.alive());

  EXPECT_EQ(Run({"local", "up", "--dir", dir_}), 7) << "these members start nothing";

  EXPECT_FALSE(member_.alive()) << said_;
  EXPECT_THAT(said_, HasSubstr("stopping the processes of an interrupted muster local up"));
  EXPECT_THAT(said_, HasSubstr("the coordinator did not open its port"));
}

TEST_F(LocalCommandsTest, DownNamesTheJobsThatRun) {
  const OneRunningJob coordinator;
  StartCoordinator(/*whole=*/true, coordinator.address());

  EXPECT_EQ(Run({"local", "down", "--dir", dir_}), 0);

  EXPECT_THAT(said_, HasSubstr("line-1 is RUNNING at step 120/200: saving it\n"));
  EXPECT_THAT(said_, HasSubstr("line-1 has no checkpoint; muster local up --dir "));
  EXPECT_FALSE(member_.alive());
}

TEST_F(LocalCommandsTest, SuggestedCommandsNameTheFolder) {
  EXPECT_EQ(Run({"local", "down", "--dir", dir_}), 3);
  EXPECT_THAT(said_, HasSubstr(absl::StrCat("muster local up --dir ", dir_, " starts one")));

  StartCoordinator(/*whole=*/true);
  EXPECT_EQ(Run({"local", "up", "--dir", dir_, "--ps", "5"}), 6);
  EXPECT_THAT(said_, HasSubstr(absl::StrCat("muster local down --dir ", dir_, " stops it")));
  EXPECT_EQ(LocalCommand("down", DefaultLocalDir()), "muster local down");
}

TEST_F(LocalCommandsTest, AnErrorSaysThatTheLocalCoordinatorHasEnded) {
  MakeDefault();
  StartCoordinator(/*whole=*/true);
  StopProcesses({member_}, absl::ZeroDuration());

  EXPECT_EQ(Run({"list"}), 7);
  EXPECT_THAT(said_, HasSubstr("the coordinator of the local cluster in "));
  EXPECT_THAT(said_, HasSubstr("/logs/coordinator.log): muster local up starts it again"));
  EXPECT_EQ(Run({"doctor", "-o", "name"}), 1) << "an ended coordinator is a fault";
}

TEST_F(LocalCommandsTest, AddingAContextDoesNotHideTheLocalCluster) {
  MakeDefault();
  const OneRunningJob coordinator;
  StartCoordinator(/*whole=*/true, coordinator.address());

  EXPECT_EQ(Run({"context", "add", "far", "--server", "127.0.0.1:1"}), 0);
  EXPECT_EQ(Run({"list"}), 0) << said_;

  EXPECT_EQ(Run({"context", "use", "far"}), 0);
  EXPECT_EQ(Run({"list"}), 7);
  EXPECT_THAT(said_, HasSubstr("no coordinator answers at 127.0.0.1:1 (context far; muster context "
                               "use none selects the local cluster)"));
  EXPECT_EQ(Run({"doctor", "-o", "name"}), 1) << "the current context is a choice of the user";
}

TEST_F(LocalCommandsTest, AListOfFaultsSaysThatItIsAnError) {
  const std::string job = dir_ + "/line.yaml";
  std::ofstream(job) << kJobFile;

  EXPECT_EQ(Run({"run", job, "--set", "data.batch_size=0", "--set", "training.steps=-1"}), 2);
  EXPECT_THAT(said_, ::testing::StartsWith("muster: several faults [INVALID_SPEC]\n--set data."));
  EXPECT_EQ(Run({"run", job, "--set", "data.batch_size=0"}), 2);
  EXPECT_THAT(said_, ::testing::StartsWith("muster: --set data.batch_size: data.batch_size: "));
  EXPECT_THAT(said_, ::testing::EndsWith(" [INVALID_SPEC]\n"));
}

TEST_F(LocalCommandsTest, RunAndChaosDoNotTouchAClusterThatRunsInTheirFolder) {
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
  ASSERT_TRUE(other.ok()) << "the lock was not released: " << other.status();
  EXPECT_EQ(Run({"run", job, "--dir", dir_}), 6);
  EXPECT_THAT(said_, HasSubstr("[CLUSTER_BUSY]"));
}

TEST_F(LocalCommandsTest, RunKeepsTheRecordOfAClusterThatHasEnded) {
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
