// Members that are killed or stand still at random points of a job, as `muster chaos` does it: the
// model comes out the same to the bit, and every recovery has its reason.
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

// In CI few; CHAOS_STRIKES is for more, as at night.
constexpr int kKilled = 20;
constexpr int kStopped = 5;
constexpr int kStruckWhileWriting = 3;  // killed, and as many stopped

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  int64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// Of three milliseconds a step. (The name stands in the files of a checkpoint.) Adam has slots and
// dropout random numbers: both have to be where they were.
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

// CHAOS_SEED=4 CHAOS_STRIKES=1000 CHAOS_TRANSPORT=tcp CHAOS_REPLICATION=2 bazel test
// //tests/chaos:chaos_test --test_env=CHAOS_SEED ...: other strikes, as many, however long it
// takes, another data plane, and backups of shards.
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

// Disturbs a job that has no end, suspends it where it is then, and compares it with one that was
// told to come just as far.
cli::ChaosReport ExpectTheSameModel(TrainingCluster& cluster, const cli::ChaosOptions& options) {
  SCOPED_TRACE(absl::StrCat("seed ", options.seed));
  cli::CoordinatorClient client(cluster.members().address());
  const std::string job = cluster.Submit(Job(1'000'000'000));

  auto report = cli::RunChaos(job, cluster.members(), client, options);

  EXPECT_TRUE(report.ok()) << report.status();
  if (!report.ok()) return {};
  EXPECT_EQ(report->fault, "") << cluster.Logs();
  EXPECT_THAT(report->other_ends, IsEmpty()) << "nobody dies but who was struck";
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
  // More, where processors are so busy that a lease ends of itself.
  EXPECT_GE(report.recoveries["MEMBER_LOST"], StrikesAtMembers(report));
}

// Somebody else has taken the place of one that stands still when it wakes up, and goes on where it
// was.
TEST(ChaosTest, WhoStandsStillBeyondItsLeaseDisturbsNobodyWhenItWakesUp) {
  TrainingCluster cluster(Members(3, absl::Seconds(1)));
  cli::ChaosOptions options = Strikes(kStopped);
  options.signal = SIGSTOP;
  options.stop_for = absl::Milliseconds(1500);

  cli::ChaosReport report = ExpectTheSameModel(cluster, options);

  EXPECT_EQ(report.strikes.size(), FromEnvironment("CHAOS_STRIKES", kStopped));
  EXPECT_GE(report.recoveries["MEMBER_LOST"], StrikesAtMembers(report) / 2)
      << "they stood still for too short";
}

// Whoever is struck in the middle of a shard that he writes, or writes on when he wakes up, while
// another one writes it too: whatever was committed is right, and stays so.
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
    EXPECT_THAT(report->other_ends, IsEmpty()) << "nobody dies but who was struck";
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
  EXPECT_GT(compared, expected->size() / 2) << "one that was lost may not be made again";
  v1::ListEventsRequest request;
  request.set_parent(job);
  request.set_page_size(500);
  const auto events = client.ListEvents(request);
  ASSERT_TRUE(events.ok()) << events.status();
  for (const v1::JobEvent& event : events->events()) EXPECT_NE(event.reason(), "SHARD_SENT");
}

}  // namespace
}  // namespace muster::chaos_test
