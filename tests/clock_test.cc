// Steps of the wall clock, and a paused coordinator, must not make members appear dead.
#include "absl/time/clock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "lib/concurrency/steady_wait.h"
#include "tests/training_cluster.h"

namespace muster::clock_test {
namespace {

constexpr absl::Duration kLease = absl::Seconds(1);

// Runs until it is cancelled.
std::string EndlessJob() {
  return R"(
name: endless
model: {zoo: {name: gpt, args: {layers: 1, heads: 1, channels: 16, context: 16}}}
data: {text: {path: examples/data/licences}, batch_size: 4, seed: 1}
training: {steps: 100000000, optimizer: {sgd: {learning_rate: 1e-3}}, seed: 9}
resources: {workers: {min: 2, max: 2}, ps: 1}
)";
}

// Shifts the wall clock of all processes that start during its lifetime.
class ShiftedClock {
 public:
  ShiftedClock() : path_(::testing::TempDir() + "/shift-XXXXXX") {
    const int file = mkstemp(path_.data());
    EXPECT_EQ(ftruncate(file, sizeof(int64_t)), 0);
    shift_ = static_cast<std::atomic<int64_t>*>(
        mmap(nullptr, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    close(file);
    const std::string library = std::string(getenv("TEST_SRCDIR")) + "/" +
                                getenv("TEST_WORKSPACE") + "/tests/libwall_clock_shift.so";
    EXPECT_EQ(access(library.c_str(), R_OK), 0) << library;
    setenv("MUSTER_TEST_WALL_CLOCK", path_.c_str(), 1);
    setenv("LD_PRELOAD", library.c_str(), 1);
  }
  ~ShiftedClock() { munmap(shift_, sizeof(int64_t)); }

  // Processes that start from now on have the machine's clock.
  void Release() { unsetenv("LD_PRELOAD"); }
  void Set(absl::Duration ahead) { *shift_ = absl::ToInt64Seconds(ahead); }

 private:
  std::string path_;
  std::atomic<int64_t>* shift_;
};

// Waits until the job has trained for another `time`.
void TrainFor(TrainingCluster& cluster, const std::string& job, absl::Duration time) {
  const absl::Duration begin = SteadyNow();
  const int64_t step = cluster.Get(job).progress().step();
  cluster.Await(job, [&](const v1::Job& now) {
    return SteadyNow() - begin > time && now.progress().step() > step;
  });
}

// Returns the end of the last recorded step, on a worker's clock.
absl::Time LastStepEnded(const TrainingCluster& cluster, const std::string& job) {
  std::ifstream file(cluster.state_dir() + "/jobs/" + job + "/metrics.jsonl");
  const std::string records((std::istreambuf_iterator<char>(file)), {});
  double seconds = 0;
  const size_t end = records.rfind("}\n"), time = records.rfind("\"time\":", end);
  if (end == std::string::npos || time == std::string::npos) return absl::InfinitePast();
  EXPECT_TRUE(absl::SimpleAtod(records.substr(time + 7, end - time - 7), &seconds)) << records;
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

// Returns whether the coordinator's clock has begun to follow a step of `ahead`. After a step it
// runs 10 % faster or slower (fleet_clock.h).
bool CoordinatorSaw(TrainingCluster& cluster, absl::Duration ahead) {
  constexpr absl::Duration kSure = absl::Milliseconds(200);
  grpc::ClientContext context;
  v1::ServerInfo info;
  const absl::Time before = absl::Now();
  EXPECT_TRUE(cluster.jobs().GetServerInfo(&context, {}, &info).ok());
  const absl::Time after = absl::Now();
  const absl::Time shown = absl::FromUnixSeconds(info.server_time().seconds()) +
                           absl::Nanoseconds(info.server_time().nanos());
  if (ahead > absl::ZeroDuration()) return shown > after + kSure;
  return ahead == absl::ZeroDuration() || shown < before - kSure;
}

// Waits until a worker and the coordinator see the clock's step of `ahead`. Before that, the test
// would show nothing.
void AwaitSeen(TrainingCluster& cluster, const std::string& job, absl::Duration ahead) {
  cluster.Await(job, [&](const v1::Job&) {
    const absl::Duration wrong = LastStepEnded(cluster, job) - (absl::Now() + ahead);
    return absl::AbsDuration(wrong) < absl::Minutes(10) && CoordinatorSaw(cluster, ahead);
  });
}

TEST(ClockTest, AStepOfTheWallClockByAnHourIsNobodysDeath) {
  ShiftedClock clock;
  TrainingCluster cluster({.ps = 1, .workers = 2, .ps_threads = 1, .lease = kLease});
  clock.Release();
  const std::string job = cluster.Submit(EndlessJob());
  cluster.AwaitStep(job, 10);

  for (const absl::Duration ahead :
       {absl::Hours(1), absl::ZeroDuration(), -absl::Hours(1), absl::ZeroDuration()}) {
    clock.Set(ahead);
    TrainFor(cluster, job, 3 * kLease);
    AwaitSeen(cluster, job, ahead);
    EXPECT_EQ(cluster.Get(job).state(), v1::RUNNING) << cluster.Logs();
  }
  EXPECT_EQ(cluster.Get(job).generation(), 1);
}

TEST(ClockTest, ACoordinatorThatStoodStillTakesNobodyForDead) {
  TrainingCluster cluster({.ps = 1, .workers = 2, .ps_threads = 1, .lease = kLease});
  const std::string job = cluster.Submit(EndlessJob());
  cluster.AwaitStep(job, 10);

  ASSERT_TRUE(cluster.members().Kill("coordinator", SIGSTOP).ok());
  absl::SleepFor(4 * kLease);  // the test needs time to pass
  ASSERT_TRUE(cluster.members().Kill("coordinator", SIGCONT).ok());

  TrainFor(cluster, job, 3 * kLease);
  EXPECT_EQ(cluster.Get(job).state(), v1::RUNNING) << cluster.Logs();
  EXPECT_EQ(cluster.Get(job).generation(), 1);
}

}  // namespace
}  // namespace muster::clock_test
