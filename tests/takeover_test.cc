// Several coordinators on one etcd. If the leader or etcd fails, another coordinator takes over. A
// training job loses no step and keeps its generation.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/framework/coordinator_client.h"
#include "cli/local/local_cluster.h"
#include "cli/local/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/fleet/channel.h"
#include "lib/fleet/leader.h"
#include "lib/job/job_file.h"
#include "lib/status/status.h"
#include "nlohmann/json.hpp"
#include "services/coordinator/testing/etcd_server.h"

namespace muster::takeover_test {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr int kMembers = 3;

// Trains for longer than any test lasts.
constexpr char kJob[] = R"(
name: endless
model: {zoo: {name: mlp, args: {inputs: 64, hidden: "256,256", classes: 4}}}
data: {synthetic: {samples: 4096}, batch_size: 64, seed: 1}
training: {steps: 10000000, optimizer: {sgd: {learning_rate: 1e-3}}, seed: 9}
resources: {workers: {min: 2, max: 2}, ps: 1}
)";

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

// Returns whether `done` became true within kPatience. Polls, because the test waits for other
// processes.
bool Poll(const std::function<bool()>& done) {
  for (const absl::Time end = absl::Now() + kPatience; absl::Now() < end;) {
    if (done()) return true;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return false;
}

// Returns the lease: how long a silent coordinator stays leader. A short lease makes the test fast.
std::string Lease() {
  const char* const given = std::getenv("TAKEOVER_LEASE");
  return given == nullptr ? "2s" : given;
}

class TakeoverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    etcd_ = EtcdServer::Start();
    if (etcd_ == nullptr) GTEST_SKIP() << "etcd is not installed: apt-get install etcd-server";
    dir_ = ::testing::TempDir() + "/takeover-XXXXXX";
    ASSERT_NE(mkdtemp(dir_.data()), nullptr);
    for (const char* name : {"a", "b"}) {
      StartCoordinator(name, "127.0.0.1:0");
      ASSERT_TRUE(Poll([&] { return !AddressOf(name).empty(); })) << Log(name);
      addresses_[name] = AddressOf(name);
    }
    const std::string both = absl::StrCat(addresses_["a"], ",", addresses_["b"]);
    target_ = std::make_unique<CoordinatorTarget>(both);
    StartMember("ps-0", "ps", {"--threads=1"}, both);
    StartMember("worker-0", "worker", {"--threads_per_device=1"}, both);
    StartMember("worker-1", "worker", {"--threads_per_device=1"}, both);
  }

  void TearDown() override {
    std::vector<cli::Process> all;
    for (const auto& [name, process] : processes_) all.push_back(process);
    for (const cli::Process& process : all) kill(process.pid, SIGKILL);
    cli::AwaitExit(all, kPatience).IgnoreError();
  }

  void Start(const std::string& name, const std::string& role, std::vector<std::string> flags) {
    const auto binary = cli::FindBinary(role);
    ASSERT_TRUE(binary.ok()) << binary.status();
    flags.insert(flags.begin(), {*binary, "--metrics=127.0.0.1:0"});
    auto process = cli::StartProcess({.argv = std::move(flags), .log_path = LogPath(name)});
    ASSERT_TRUE(process.ok()) << process.status();
    processes_[name] = *process;
  }
  void StartCoordinator(const std::string& name, const std::string& listen,
                        const std::string& state_dir = "state") {
    Start(
        name, "coordinator",
        {absl::StrCat("--listen=", listen), absl::StrCat("--state_dir=", dir_, "/", state_dir),
         absl::StrCat("--store=etcd://", etcd_->address()), absl::StrCat("--store_lease=", Lease()),
         absl::StrCat("--address_file=", dir_, "/", name, ".address")});
  }
  void Restart(const std::string& name) { StartCoordinator(name, addresses_[name]); }
  void StartMember(const std::string& name, const std::string& role, std::vector<std::string> flags,
                   const std::string& coordinators) {
    flags.push_back("--name=" + name);
    flags.push_back("--coordinator=" + coordinators);
    flags.push_back("--data_port=0");
    Start(name, role, std::move(flags));
  }

  std::string AddressOf(const std::string& name) const {
    std::string address;
    std::ifstream(absl::StrCat(dir_, "/", name, ".address")) >> address;
    return address;
  }
  std::string LogPath(const std::string& name) const {
    return absl::StrCat(dir_, "/", name, ".log");
  }
  std::string Log(const std::string& name) const { return ReadAll(LogPath(name)); }
  std::string Logs() const {
    std::string logs;
    for (const auto& [name, process] : processes_) absl::StrAppend(&logs, name, ":\n", Log(name));
    return logs;
  }

  // "a" or "b".
  std::string Leader() {
    EXPECT_TRUE(Poll([&] { return FindLeader(*target_).ok(); })) << Logs();
    return target_->address() == addresses_["a"] ? "a" : "b";
  }
  bool StandsBy(const std::string& name) {
    const auto refused = cli::CoordinatorClient(addresses_[name]).GetJob(job_);
    return ReasonOf(refused.status()) == "NOT_LEADER";
  }
  void Signal(const std::string& name, int signal) {
    ASSERT_EQ(kill(processes_[name].pid, signal), 0) << name;
  }
  // Waits for the end of the process. Returns its exit code, or -1 if a signal ended it.
  int AwaitEnd(const std::string& name) {
    int status = 0;
    EXPECT_TRUE(Poll([&] { return waitpid(processes_[name].pid, &status, WNOHANG) > 0; }))
        << Logs();
    processes_.erase(name);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void AwaitMembers() {
    ASSERT_TRUE(Poll([&] {
      if (!FindLeader(*target_).ok()) return false;
      const auto members = cli::CoordinatorClient(*target_).ListMembers();
      return members.ok() && members->members_size() == kMembers;
    })) << Logs();
  }
  v1::Job Get() {
    v1::Job job;
    EXPECT_TRUE(Poll([&] {
      if (!FindLeader(*target_).ok()) return false;
      const auto got = cli::CoordinatorClient(*target_).GetJob(job_);
      if (got.ok()) job = *got;
      return got.ok();
    })) << Logs();
    return job;
  }
  // Waits until the job has made some more steps than the leader knows of now.
  void AwaitSteps(const std::string& when) {
    const int64_t now = Get().progress().step();
    ASSERT_TRUE(Poll([&] { return Get().progress().step() > now + 5; }))
        << when << "\n"
        << Get().DebugString() << Logs();
  }

  std::unique_ptr<EtcdServer> etcd_;
  std::string dir_;
  std::map<std::string, cli::Process> processes_;
  std::map<std::string, std::string> addresses_;
  std::unique_ptr<CoordinatorTarget> target_;
  std::string job_;
};

TEST_F(TakeoverTest, AJobGoesOnWhateverBecomesOfItsCoordinators) {
  AwaitMembers();
  v1::CreateJobRequest request;
  const auto spec = ParseJobFile(kJob, "job.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  *request.mutable_spec() = *spec;
  const auto created = cli::CoordinatorClient(*target_).CreateJob(request);
  ASSERT_TRUE(created.ok()) << created.status();
  job_ = created->name();
  ASSERT_TRUE(Poll([&] { return Get().state() == v1::RUNNING; })) << Logs();
  AwaitSteps("at first");

  // The standby reports its state and the leader.
  const std::string first = Leader();
  const std::string second = first == "a" ? "b" : "a";
  EXPECT_TRUE(StandsBy(second));
  const auto refused = cli::CoordinatorClient(addresses_[second]).GetJob(job_);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr(addresses_[first]));

  // The leader dies.
  const absl::Time killed = absl::Now();
  Signal(first, SIGKILL);
  EXPECT_EQ(AwaitEnd(first), -1);
  EXPECT_EQ(Leader(), second);
  const absl::Time answered = absl::Now();
  AwaitMembers();
  const absl::Time attached = absl::Now();
  AwaitSteps("after the leader died");
  std::cout << "killed, lease " << Lease() << ": another leads after " << answered - killed
            << ", all members attached after " << attached - killed << "\n";
  Restart(first);

  // The leader is paused for too long, and resumes.
  const absl::Time stopped = absl::Now();
  Signal(second, SIGSTOP);
  EXPECT_EQ(Leader(), first);
  AwaitMembers();
  std::cout << "stopped, lease " << Lease() << ": all members attached after "
            << absl::Now() - stopped << "\n";
  Signal(second, SIGCONT);
  EXPECT_EQ(AwaitEnd(second), 200) << "to be started again";
  EXPECT_THAT(Log(second), HasSubstr("STORE_LOST"));
  AwaitSteps("after the leader stood still");
  Restart(second);

  // etcd restarts without an effect on the job.
  etcd_->Kill();
  etcd_->Restart();
  AwaitSteps("after a restart of etcd");
  EXPECT_EQ(Leader(), first);

  // etcd is down for longer than the lease, so no coordinator can lead.
  etcd_->Kill();
  EXPECT_EQ(AwaitEnd(first), 200);
  EXPECT_FALSE(FindLeader(*target_).ok());
  etcd_->Restart();
  EXPECT_EQ(Leader(), second);
  AwaitMembers();
  AwaitSteps("after an outage of etcd");

  // A leader that gets SIGTERM releases its lease, so the next one need not wait.
  Restart(first);
  ASSERT_TRUE(Poll([&] { return StandsBy(first); })) << Log(first);
  Signal(second, SIGTERM);
  EXPECT_EQ(AwaitEnd(second), 0);
  EXPECT_EQ(Leader(), first);
  AwaitSteps("after an orderly end");

  const v1::Job job = Get();
  EXPECT_EQ(job.state(), v1::RUNNING);
  EXPECT_EQ(job.generation(), 1) << "it noticed";
  ASSERT_TRUE(cli::CoordinatorClient(*target_).CancelJob(job_).ok());
  ASSERT_TRUE(Poll([&] { return Get().state() == v1::CANCELLED; })) << Logs();
  std::ifstream metrics(absl::StrCat(dir_, "/state/", job_, "/metrics.jsonl"));
  int64_t next = 0;
  for (std::string line; std::getline(metrics, line);) {
    const auto record = nlohmann::json::parse(line);
    if (!record.contains("loss")) continue;
    const auto step = record["step"].get<int64_t>();
    ASSERT_LE(step, next) << "steps are missing before " << line;
    // A step may be there twice: a leader that was stopped had begun to write it.
    next = std::max(next, step + 1);
  }
  EXPECT_GE(next, job.progress().step());
}

TEST_F(TakeoverTest, WithAStateFolderOfItsOwnACoordinatorTakesNoPart) {
  AwaitMembers();

  StartCoordinator("c", "127.0.0.1:0", "another");

  EXPECT_EQ(AwaitEnd("c"), 78);
  EXPECT_THAT(ReadAll(LogPath("c")), HasSubstr("STATE_DIR_NOT_SHARED"));
}

}  // namespace
}  // namespace muster::takeover_test
