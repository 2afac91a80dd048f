// Kills and pauses members at random points of a job, like `muster chaos`. The model must be the
// same to the bit, and every recovery must have a known reason.
#include "cli/chaos/chaos.h"

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "cli/framework/coordinator_client.h"
#include "cli/local/local_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "tests/training_cluster.h"

namespace muster::chaos_test {
namespace {

using ::testing::IsEmpty;

// Numbers of strikes in CI. CHAOS_STRIKES sets more for nightly runs.
constexpr int kKilled = 20;
constexpr int kStopped = 5;
constexpr int kStruckWhileWriting = 3;  // killed; as many are paused

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  int64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// Returns a job with steps of about three milliseconds. Its name is constant, because checkpoint
// files contain it. A recovery must restore optimizer slots (Adam) and random numbers (dropout).
std::string Job(int64_t steps, const std::string& checkpoint = "{every_steps: 100, keep_last: 2}") {
  return absl::Substitute(R"(
name: chaos
model: {zoo: {name: gpt, args: {layers: 2, heads: 2, channels: 64, context: 32, dropout: 0.1}}}
data: {text: {path: examples/data/licences, holdout: 0.05}, batch_size: 8, seed: 1}
training: {steps: $0, optimizer: {adamw: {learning_rate: 1e-3}}, seed: 9}
resources: {workers: {min: 2, max: 2}, ps: 2, ps_replication: $1}
checkpoint: $2
)",
                          steps, FromEnvironment("CHAOS_REPLICATION", 1), checkpoint);
}

// Returns the options of the cluster. To vary the run: CHAOS_SEED=4 CHAOS_STRIKES=1000
// CHAOS_TRANSPORT=tcp CHAOS_REPLICATION=2 bazel test //tests/chaos:chaos_test --test_env=CHAOS_SEED
// ... They set other strikes, their number, the transport and the copies of a shard.
cli::LocalCluster::Options Members(int each, absl::Duration lease) {
  const char* transport = std::getenv("CHAOS_TRANSPORT");
  std::vector<std::string> flags;
  if (transport != nullptr) flags.push_back(absl::StrCat("--transport=", transport));
  return {.ps = each + (FromEnvironment("CHAOS_REPLICATION", 1) > 1 ? 1 : 0),
          .workers = each,
          .ps_threads = 1,
          .lease = lease,
          .ps_flags = flags,
          .worker_flags = flags};
}

cli::ChaosOptions Strikes(int most) {
  return {.seed = static_cast<uint64_t>(FromEnvironment("CHAOS_SEED", 14)),
          .every = absl::Milliseconds(100),
          .duration = absl::InfiniteDuration(),
          .strikes_max = static_cast<int>(FromEnvironment("CHAOS_STRIKES", most)),
          .away = absl::Milliseconds(50),
          .awaits_end = false,
          .say = [](const std::string& line) { std::cerr << line << std::endl; }};
}

// Disturbs a job without end, then suspends it. Compares its model with that of an undisturbed job
// that runs the same number of steps.
cli::ChaosReport ExpectTheSameModel(TrainingCluster& cluster, const cli::ChaosOptions& options) {
  SCOPED_TRACE(absl::StrCat("seed ", options.seed));
  cli::CoordinatorClient client(cluster.members().address());
  const std::string job = cluster.Submit(Job(1'000'000'000));

  auto report = cli::RunChaos(job, cluster.members(), client, options);

  EXPECT_TRUE(report.ok()) << report.status();
  if (!report.ok()) return {};
  EXPECT_EQ(report->fault, "") << cluster.Logs();
  EXPECT_THAT(report->other_ends, IsEmpty()) << "a process ended that was not struck";
  for (const cli::Strike& strike : report->strikes) EXPECT_TRUE(strike.recovered());

  EXPECT_TRUE(client.SuspendJob(job).ok());
  const int64_t step = cluster.AwaitState(job, v1::SUSPENDED).progress().step();
  const std::string undisturbed = cluster.Submit(Job(step));
  cluster.AwaitState(undisturbed, v1::SUCCEEDED, absl::Hours(1));
  EXPECT_EQ(cluster.Hashes(job, step), cluster.Hashes(undisturbed, step)) << "at step " << step;
  return *std::move(report);
}

int StrikesAtMembers(const cli::ChaosReport& report) {
  return cli::FiguresOf(report.strikes, cli::ChaosRole::kPs).strikes +
         cli::FiguresOf(report.strikes, cli::ChaosRole::kWorker).strikes;
}

TEST(ChaosTest, WhoeverIsKilledTheModelIsTheSameToTheBit) {
  TrainingCluster cluster(Members(2, absl::Milliseconds(1500)));

  cli::ChaosReport report = ExpectTheSameModel(cluster, Strikes(kKilled));

  EXPECT_EQ(report.strikes.size(), FromEnvironment("CHAOS_STRIKES", kKilled));
  // The lease of a busy member may expire, so there may be more recoveries than strikes.
  EXPECT_GE(report.recoveries["MEMBER_LOST"], StrikesAtMembers(report));
}

// When a paused member resumes, it continues where it was, although another member has taken its
// place. This must not disturb the job.
TEST(ChaosTest, WhoStandsStillBeyondItsLeaseDisturbsNobodyWhenItWakesUp) {
  TrainingCluster cluster(Members(3, absl::Seconds(1)));
  cli::ChaosOptions options = Strikes(kStopped);
  options.signal = SIGSTOP;
  options.stop_for = absl::Milliseconds(1500);

  cli::ChaosReport report = ExpectTheSameModel(cluster, options);

  EXPECT_EQ(report.strikes.size(), FromEnvironment("CHAOS_STRIKES", kStopped));
  EXPECT_GE(report.recoveries["MEMBER_LOST"], StrikesAtMembers(report) / 2)
      << "the pauses were shorter than the lease";
}

// Checkpoints are so frequent that strikes hit ps while they write a shard. A paused ps may
// continue its write while another ps writes the same shard. Every committed checkpoint must be
// correct and stay correct.
TEST(ChaosTest, WhoeverIsStruckEveryCheckpointThatPsWroteThemselvesIsRight) {
  TrainingCluster cluster(Members(3, absl::Seconds(1)));
  cli::CoordinatorClient client(cluster.members().address());
  const std::string often = "{every_steps: 10, keep_last: 0, mode: direct}";
  const std::string job = cluster.Submit(Job(1'000'000'000, often));
  for (const int signal : {SIGKILL, SIGSTOP}) {
    cli::ChaosOptions options = Strikes(kStruckWhileWriting);
    options.signal = signal;
    options.stop_for = absl::Milliseconds(1500);
    SCOPED_TRACE(absl::StrCat("seed ", options.seed, ", signal ", signal));
    const auto report = cli::RunChaos(job, cluster.members(), client, options);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->fault, "") << cluster.Logs();
    EXPECT_THAT(report->other_ends, IsEmpty()) << "a process ended that was not struck";
  }
  ASSERT_TRUE(client.SuspendJob(job).ok());
  const int64_t last = cluster.AwaitState(job, v1::SUSPENDED).progress().step();
  const std::string undisturbed = cluster.Submit(Job(last, often));
  cluster.AwaitState(undisturbed, v1::SUCCEEDED, absl::Hours(1));

  const auto steps = ListCheckpointSteps(cluster.checkpoint_directory(job));
  const auto expected = ListCheckpointSteps(cluster.checkpoint_directory(undisturbed));
  ASSERT_TRUE(steps.ok() && expected.ok()) << steps.status() << expected.status();
  size_t compared = 0;
  for (const int64_t step : *steps) {
    if (!std::ranges::binary_search(*expected, step)) continue;
    EXPECT_EQ(cluster.Hashes(job, step), cluster.Hashes(undisturbed, step)) << "at step " << step;
    ++compared;
  }
  EXPECT_GT(compared, expected->size() / 2)
      << "too few checkpoints to compare; a lost checkpoint is not written again";
  v1::ListEventsRequest request;
  request.set_parent(job);
  request.set_page_size(500);
  const auto events = client.ListEvents(request);
  ASSERT_TRUE(events.ok()) << events.status();
  for (const v1::JobEvent& event : events->events()) EXPECT_NE(event.reason(), "SHARD_SENT");
}

}  // namespace
}  // namespace muster::chaos_test
