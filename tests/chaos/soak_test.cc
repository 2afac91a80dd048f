// Trains for a long time while members are killed one after another. Neither the coordinator, which
// lives all the time, nor any member may grow.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/substitute.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cli/chaos/chaos.h"
#include "cli/framework/coordinator_client.h"
#include "cli/local/local_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/training_cluster.h"

namespace muster::soak_test {
namespace {

using ::testing::IsEmpty;

// Returns the environment variable `name`, or `otherwise` if it is not set. To run longer:
// SOAK_MINUTES=60 SOAK_KILL_SECONDS=60 bazel test //tests/chaos:soak_test --test_env=SOAK_MINUTES
// --test_env=SOAK_KILL_SECONDS --test_timeout=10000. SOAK_SEED changes the strikes. The undisturbed
// run takes additional time.
double FromEnvironment(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  double value = 0;
  return text != nullptr && absl::SimpleAtod(text, &value) ? value : otherwise;
}

// Resident bytes, threads and descriptors. kAllowance is the allowed growth of each: allocators
// keep freed memory, and gRPC adds pollers and connections while a member is away.
using Footprint = std::array<int64_t, 3>;
constexpr std::array<const char*, 3> kNames = {"bytes", "threads", "descriptors"};
constexpr Footprint kAllowance = {8 << 20, 4, 6};
constexpr size_t kWarmUp = 10;    // samples, one per second, while pools fill
constexpr size_t kLooksMin = 20;  // samples that a process must have to be checked

int64_t CountEntries(const std::string& folder) {
  std::error_code error;
  return std::distance(std::filesystem::directory_iterator(folder, error), {});
}

// Samples, every second, the child processes of the thread that creates the watcher.
class Watcher {
 public:
  struct Process {
    std::string program;
    std::vector<Footprint> looks;
  };

  Watcher() : thread_([this, parent = gettid()] { Run(parent); }) {}
  ~Watcher() { Stop(); }

  const std::map<int, Process>& Stop() {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    if (thread_.joinable()) thread_.join();
    return processes_;
  }

 private:
  void Run(pid_t parent) {
    while (true) {
      std::ifstream children(absl::StrCat("/proc/self/task/", parent, "/children"));
      for (int pid; children >> pid;) Look(pid);
      absl::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&stopping_), absl::Seconds(1))) return;
    }
  }
  void Look(int pid) {
    const std::string folder = absl::StrCat("/proc/", pid);
    std::ifstream statm(folder + "/statm"), command(folder + "/cmdline");
    int64_t total = 0, resident = 0;
    std::string program;
    statm >> total >> resident;
    std::getline(command, program, '\0');
    if (resident == 0 || !absl::StrContains(program, "services/")) return;  // it has exited
    Process& process = processes_[pid];
    process.program = program;
    process.looks.push_back({resident * sysconf(_SC_PAGESIZE), CountEntries(folder + "/task"),
                             CountEntries(folder + "/fd")});
  }

  std::map<int, Process> processes_;  // owned by the thread until it is joined
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last, because it uses the other members
};

// Returns the process's role: "coordinator", "ps" or "worker".
std::string ProgramOf(const Watcher::Process& process) {
  const std::vector<std::string> path = absl::StrSplit(process.program, '/');
  return path.size() < 2 ? "" : path[path.size() - 2];
}

std::string Job(int64_t steps) {
  return absl::Substitute(R"(
name: soak
model: {zoo: {name: gpt, args: {layers: 2, heads: 2, channels: 64, context: 32, dropout: 0.1}}}
data: {text: {path: examples/data/licences, holdout: 0.05}, batch_size: 8, seed: 1}
training: {steps: $0, optimizer: {adamw: {learning_rate: 1e-3}}, seed: 9}
resources: {workers: {min: 2, max: 2}, ps: 2}
checkpoint: {every_steps: 500, keep_last: 2}
)",
                          steps);
}

// Checks that the maximum in the second half after the warm-up does not exceed that of the first
// half by more than the allowance.
void ExpectFlat(int pid, const Watcher::Process& process) {
  if (process.looks.size() < kLooksMin) return;
  const auto begin = process.looks.begin() + kWarmUp, end = process.looks.end();
  const auto middle = begin + (end - begin) / 2;
  for (size_t i = 0; i < kNames.size(); ++i) {
    auto less = [i](const Footprint& a, const Footprint& b) { return a[i] < b[i]; };
    const int64_t before = (*std::max_element(begin, middle, less))[i];
    const int64_t after = (*std::max_element(middle, end, less))[i];
    std::cerr << process.program << " " << pid << ", " << process.looks.size()
              << " s: " << kNames[i] << " " << before << " then " << after << std::endl;
    EXPECT_LE(after - before, kAllowance[i]) << process.program << ": " << kNames[i];
  }
}

TEST(SoakTest, NothingGrowsWhileMembersAreKilled) {
  TrainingCluster cluster({.ps = 2, .workers = 2, .ps_threads = 1});
  cli::CoordinatorClient client(cluster.members().address());
  const double minutes = FromEnvironment("SOAK_MINUTES", 10);
  const auto seed = static_cast<uint64_t>(FromEnvironment("SOAK_SEED", 14));
  SCOPED_TRACE(absl::StrCat("SOAK_SEED=", seed));
  const std::string job = cluster.Submit(Job(1'000'000'000));
  Watcher watcher;

  const auto report =
      cli::RunChaos(job, cluster.members(), client,
                    {.seed = seed,
                     .roles = {cli::ChaosRole::kPs, cli::ChaosRole::kWorker},
                     .every = absl::Seconds(FromEnvironment("SOAK_KILL_SECONDS", 60)),
                     .duration = absl::Minutes(minutes),
                     .awaits_end = false,
                     .say = [](const std::string& line) { std::cerr << line << std::endl; }});

  const auto& processes = watcher.Stop();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->fault, "") << cluster.Logs();
  EXPECT_THAT(report->other_ends, IsEmpty()) << "nobody dies but who was struck";
  EXPECT_FALSE(report->strikes.empty());
  for (const cli::Strike& strike : report->strikes) EXPECT_TRUE(strike.recovered());
  for (const auto& [reason, count] : report->recoveries) {
    std::cerr << count << " recoveries: " << reason << std::endl;
    EXPECT_EQ(reason, "MEMBER_LOST");
  }
  std::map<std::string, int> judged;  // by program
  for (const auto& [pid, process] : processes) {
    ExpectFlat(pid, process);
    if (process.looks.size() >= kLooksMin) ++judged[ProgramOf(process)];
  }
  EXPECT_GT(judged["coordinator"], 0) << "SOAK_MINUTES is too short";
  // Of the two members of a role, one gets at most half of the strikes. So at least one of its
  // processes lives this long.
  const double longest_life = 60 * minutes / (report->strikes.size() / 2 + 1);
  if (longest_life > 2 * kLooksMin) {
    EXPECT_GT(judged["ps"], 0);
    EXPECT_GT(judged["worker"], 0);
  }

  ASSERT_TRUE(client.SuspendJob(job).ok());
  const int64_t step = cluster.AwaitState(job, v1::SUSPENDED).progress().step();
  const std::string undisturbed = cluster.Submit(Job(step));
  cluster.AwaitState(undisturbed, v1::SUCCEEDED, absl::Hours(4));
  EXPECT_EQ(cluster.Hashes(job, step), cluster.Hashes(undisturbed, step)) << "at step " << step;
  std::cerr << report->strikes.size() << " strikes, " << step << " steps" << std::endl;
}

}  // namespace
}  // namespace muster::soak_test
