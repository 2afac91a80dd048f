// Processes die or are paused during a run. The job continues without them or with their
// successors, and reaches the same parameters.
#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/substitute.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "tests/member_exit.h"
#include "tests/metrics_page.h"
#include "tests/training_cluster.h"

namespace muster::recovery_test {
namespace {

using ::testing::HasSubstr;

const int kSteps = Lengthened(1200);  // of about three milliseconds each
constexpr int kCheckpointSteps = 250;
constexpr int kEarly = 100;   // before the first checkpoint
constexpr int kMiddle = 320;  // after the first checkpoint, and seconds before the last step
// A job that is halted after kMiddle steps keeps at least these. A worker counts a step before the
// ps agree on it, so one step may be computed again.
constexpr int kKept = kMiddle - 1;

// Returns a job whose recovery must restore optimizer slots (Adam) and random numbers (dropout).
std::string Job(const std::string& name, int workers_min = 2, const std::string& more = "") {
  return absl::Substitute(R"(
name: $0
model: {zoo: {name: gpt, args: {layers: 2, heads: 2, channels: 64, context: 32, dropout: 0.1}}}
data: {text: {path: examples/data/licences, holdout: 0.05}, batch_size: 8, seed: 1}
training: {steps: $1, optimizer: {adamw: {learning_rate: 1e-3}}, evaluate_every_steps: 200, seed: 9$3}
resources: {workers: {min: $2, max: 2}, ps: 2}
checkpoint: {every_steps: $4, keep_last: 0}
)",
                          name, kSteps, workers_min, more, kCheckpointSteps);
}

// The same job with another number of steps.
std::string WithSteps(const std::string& job, int steps) {
  return absl::StrReplaceAll(job,
                             {{absl::StrCat("{steps: ", kSteps), absl::StrCat("{steps: ", steps)}});
}

// The same job with a checkpoint only after its last step.
std::string WithoutCheckpoints(const std::string& job) {
  return absl::StrReplaceAll(job,
                             {{absl::StrCat("{every_steps: ", kCheckpointSteps), "{every: 0s"}});
}

// Returns all events of a finished job.
std::vector<v1::JobEvent> Events(TrainingCluster& cluster, const std::string& job) {
  std::vector<v1::JobEvent> events;
  grpc::ClientContext context;
  v1::WatchJobRequest request;
  request.set_name(job);
  v1::WatchJobResponse response;
  const auto stream = cluster.jobs().WatchJob(&context, request);
  while (stream->Read(&response)) {
    events.insert(events.end(), response.events().begin(), response.events().end());
  }
  return events;
}

// Returns the steps at which the job's generations began.
std::vector<int64_t> FirstSteps(const std::vector<v1::JobEvent>& events) {
  std::vector<int64_t> steps;
  for (const v1::JobEvent& event : events) {
    const size_t at = event.message().rfind("from step ");
    int64_t step = 0;
    if (event.reason() != "SCHEDULED" || at == std::string::npos) continue;
    EXPECT_TRUE(absl::SimpleAtoi(event.message().substr(at + 10), &step)) << event.message();
    steps.push_back(step);
  }
  return steps;
}

// All tests share one cluster; each test leaves it complete.
class RecoveryTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new TrainingCluster({.ps = 2, .workers = 2, .ps_threads = 1});
    undisturbed_ = new std::string(shared_->Run(Job("undisturbed")));
  }
  static void TearDownTestSuite() {
    delete std::exchange(undisturbed_, nullptr);
    delete std::exchange(shared_, nullptr);
  }

  void SetUp() override {
    ASSERT_TRUE(cluster_.members().AwaitAttached(absl::Seconds(30)).ok()) << cluster_.Logs();
  }

  void Kill(const std::string& member, int signal = SIGKILL) {
    ASSERT_TRUE(cluster_.members().Kill(member, signal).ok()) << member;
  }
  void Restart(const std::string& member) {
    ASSERT_TRUE(cluster_.members().Restart(member).ok()) << member;
  }
  void Cancel(const std::string& job) {
    grpc::ClientContext context;
    v1::CancelJobRequest request;
    v1::Job cancelled;
    request.set_name(job);
    EXPECT_TRUE(cluster_.jobs().CancelJob(&context, request, &cancelled).ok());
  }
  v1::Job AwaitRecovery(const std::string& job, int count) {
    return cluster_.Await(
        job, [count](const v1::Job& seen) { return seen.recovery().count() >= count; },
        absl::Seconds(30));
  }
  void AwaitReason(const std::string& job, const std::string& reason) {
    cluster_.Await(
        job, [&](const v1::Job& seen) { return seen.reason() == reason; }, absl::Seconds(60));
  }

  // Models a power failure. The members die one after another, so the later ones may have seen the
  // earlier deaths.
  void AllDieAndTheJobGoesOnFromItsCheckpoint(const std::vector<std::string>& members) {
    const std::string job = cluster_.Submit(Job("undisturbed"));
    cluster_.Await(job,
                   [](const v1::Job& seen) { return CheckpointStepOf(seen) >= kCheckpointSteps; });
    for (const std::string& member : members) Kill(member);
    for (const std::string& member : cluster_.members().names()) Restart(member);
    const v1::Job done = cluster_.AwaitState(job, v1::SUCCEEDED);
    EXPECT_EQ(done.recovery().count(), 1);
    EXPECT_GE(done.recovery().resumed_step(), kCheckpointSteps);
    EXPECT_EQ(done.recovery().resumed_step() % kCheckpointSteps, 0);
    EXPECT_EQ(cluster_.Hashes(job, kSteps), cluster_.Hashes(*undisturbed_, kSteps));
    ExpectSame(job, *undisturbed_);
  }

  void ExpectSame(const std::string& job, const std::string& undisturbed) {
    EXPECT_EQ(cluster_.Parameters(job, kSteps), cluster_.Parameters(undisturbed, kSteps));
    const std::vector<StepMetrics> expected = cluster_.Metrics(undisturbed);
    const std::vector<StepMetrics> metrics = cluster_.Metrics(job);
    ASSERT_FALSE(metrics.empty());
    EXPECT_EQ(metrics.back().step, kSteps - 1);
    EXPECT_EQ(metrics.back().loss, expected.back().loss);
    EXPECT_TRUE(std::ranges::is_sorted(metrics, {}, &StepMetrics::step)) << "none twice";
  }

  static TrainingCluster* shared_;
  static std::string* undisturbed_;  // the job that all others are compared with
  TrainingCluster& cluster_ = *shared_;
};

TrainingCluster* RecoveryTest::shared_ = nullptr;
std::string* RecoveryTest::undisturbed_ = nullptr;

TEST_F(RecoveryTest, WhoeverDiesTheJobComesToTheSameParameters) {
  const std::string job = cluster_.Submit(Job("disturbed"));
  int recoveries = 0;
  for (const std::string member : {"worker-1", "worker-0", "ps-1", "worker-1", "ps-0"}) {
    SCOPED_TRACE(absl::StrCat(member, " after ", recoveries, " recoveries"));
    cluster_.Await(job, [&](const v1::Job& seen) {
      return seen.state() == v1::RUNNING && seen.generation() == recoveries + 1;
    });
    AwaitMoreSteps(cluster_, job, kEarly);
    Kill(member);
    const v1::Job recovering = AwaitRecovery(job, ++recoveries);
    Restart(member);
    EXPECT_EQ(recovering.recovery().count(), recoveries);
    EXPECT_THAT(recovering.message(), HasSubstr(member));
    EXPECT_THAT(recovering.message(), HasSubstr("step "));
  }
  const v1::Job done = cluster_.AwaitState(job, v1::SUCCEEDED);
  EXPECT_EQ(done.recovery().count(), recoveries);
  EXPECT_EQ(done.generation(), recoveries + 1);
  ExpectSame(job, *undisturbed_);
}

TEST_F(RecoveryTest, ADeathOfTheCoordinatorInBetweenChangesNothing) {
  const std::string job = cluster_.Submit(Job("disturbed"));
  AwaitMoreSteps(cluster_, job, kEarly);
  Kill("worker-1");
  AwaitRecovery(job, 1);
  Kill("coordinator");
  Restart("coordinator");
  Restart("worker-1");
  cluster_.AwaitState(job, v1::SUCCEEDED);
  ExpectSame(job, *undisturbed_);
}

TEST_F(RecoveryTest, AllDieAtOnceTheCoordinatorFirst) {
  AllDieAndTheJobGoesOnFromItsCheckpoint(cluster_.members().names());
}

TEST_F(RecoveryTest, AllDieAtOnceTheCoordinatorLast) {
  std::vector<std::string> members = cluster_.members().names();
  std::ranges::reverse(members);
  AllDieAndTheJobGoesOnFromItsCheckpoint(members);
}

TEST_F(RecoveryTest, TheOthersGoOnWithoutAWorkerThatStaysAway) {
  const std::string job = cluster_.Submit(Job("lonely", /*workers_min=*/1));
  AwaitMoreSteps(cluster_, job, kEarly);
  Kill("worker-1");
  const v1::Job done = cluster_.AwaitState(job, v1::SUCCEEDED);
  EXPECT_EQ(done.workers_size(), 1);
  EXPECT_EQ(done.workers(0), "worker-0");
  Restart("worker-1");
  cluster_.Run(WithSteps(Job("next"), 50));
}

// The lease detects a paused member. When that member resumes, it does not affect the job.
TEST_F(RecoveryTest, AMemberThatStandsStillAndWakesUpDisturbsNobody) {
  const std::string job = cluster_.Submit(Job("disturbed"));
  AwaitMoreSteps(cluster_, job, kEarly);
  Kill("worker-0", SIGSTOP);
  AwaitReason(job, "WAITS_FOR_MEMBERS");  // the others do not wait for it to stop
  Kill("worker-0", SIGCONT);
  AwaitMoreSteps(cluster_, job, kEarly);
  Kill("ps-1", SIGSTOP);
  AwaitReason(job, "WAITS_FOR_MEMBERS");
  Kill("ps-1", SIGCONT);
  EXPECT_EQ(cluster_.AwaitState(job, v1::SUCCEEDED).recovery().count(), 2);
  ExpectSame(job, *undisturbed_);
}

TEST_F(RecoveryTest, StepsThatAreJudgedTogetherRecoverToo) {
  const std::string more = ", precision: fp16, clip: {global_norm: 1}";
  const std::string judged = cluster_.Run(Job("judged", 2, more));
  const std::string job = cluster_.Submit(Job("disturbed", 2, more));
  AwaitMoreSteps(cluster_, job, kEarly);
  Kill("worker-1");
  AwaitRecovery(job, 1);
  Restart("worker-1");
  cluster_.AwaitState(job, v1::SUCCEEDED);
  ExpectSame(job, judged);
}

// No process died, so no step is computed again, and no recovery is counted.
TEST_F(RecoveryTest, WhoIsToldToStopIsLetGoWithoutLosingAStep) {
  const std::string job = cluster_.Submit(Job("deserted"));
  int64_t step = 0;
  for (const char* member : {"worker-1", "ps-0"}) {
    SCOPED_TRACE(member);
    // A worker counts a step before all shards have it, so it may be a step ahead of the job.
    AwaitMoreSteps(cluster_, job, kEarly + 1);
    ExpectOrderlyExit(cluster_, member);
    const v1::Job waiting = cluster_.AwaitState(job, v1::RECOVERING, absl::Seconds(10));
    EXPECT_THAT(waiting.message(), HasSubstr(member));
    EXPECT_GE(waiting.progress().step(), step + kEarly);
    step = waiting.progress().step();
    Restart(member);
  }
  EXPECT_EQ(cluster_.AwaitState(job, v1::SUCCEEDED).recovery().count(), 0);
  ExpectSame(job, *undisturbed_);
}

// A ps that gets SIGTERM while no coordinator runs waits for one, so that its shards get into a
// checkpoint. This happens if another coordinator takes over, or if the coordinator and the ps are
// both told to stop.
TEST_F(RecoveryTest, APsThatIsToldToStopWaitsForACoordinatorThatIsAway) {
  const std::string job =
      cluster_.Submit(WithSteps(WithoutCheckpoints(Job("orphaned")), 1'000'000));
  AwaitMoreSteps(cluster_, job, kMiddle);
  Kill("coordinator");
  MemberExit ps(&cluster_, "ps-0");
  Kill("ps-0", SIGTERM);
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(cluster_.members().AwaitExit("ps-0", /*timeout=*/absl::Seconds(3))))
      << cluster_.Logs();
  Restart("coordinator");
  ps.Expect(0);

  const v1::Job left = cluster_.Get(job);
  EXPECT_EQ(left.recovery().count(), 0) << "it did not die";
  const int64_t saved = CheckpointStepOf(left);
  EXPECT_GE(saved, kKept);
  Restart("ps-0");
  cluster_.AwaitStep(job, saved + 10);
  Cancel(job);
}

// No worker is left to continue with. The ps does not use up its drain time; it saves the halted
// step and exits.
TEST_F(RecoveryTest, APsThatIsToldToStopWhileItsJobWaitsLeavesACheckpointOfWhatItHalted) {
  const std::string job = cluster_.Submit(Job("undisturbed"));
  AwaitMoreSteps(cluster_, job, kMiddle);
  for (const char* worker : {"worker-1", "worker-0"}) ExpectOrderlyExit(cluster_, worker);
  AwaitReason(job, "WAITS_FOR_MEMBERS");
  const absl::Time begin = absl::Now();
  ExpectOrderlyExit(cluster_, "ps-0");
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10)) << "half of its drain";
  const v1::Job left = cluster_.Get(job);
  const int64_t step = CheckpointStepOf(left);
  EXPECT_GE(step, kKept);
  EXPECT_GE(step, left.progress().step() - 1) << "one is computed again at most";

  for (const char* member : {"ps-0", "worker-0", "worker-1"}) Restart(member);
  EXPECT_EQ(cluster_.AwaitState(job, v1::SUCCEEDED).recovery().count(), 0);
  const std::vector<int64_t> first_steps = FirstSteps(Events(cluster_, job));
  EXPECT_EQ(first_steps, (std::vector<int64_t>{0, step}));
  EXPECT_EQ(cluster_.Hashes(job, kSteps), cluster_.Hashes(*undisturbed_, kSteps));
  ExpectSame(job, *undisturbed_);
}

// Both workers have left, and the last checkpoint is old. The suspension saves the step at which
// the job was halted.
TEST_F(RecoveryTest, AJobThatIsSuspendedWhileItWaitsGoesOnWhereItWasHalted) {
  const std::string job = cluster_.Submit(Job("undisturbed"));
  AwaitMoreSteps(cluster_, job, kMiddle);
  for (const char* worker : {"worker-1", "worker-0"}) ExpectOrderlyExit(cluster_, worker);
  AwaitReason(job, "WAITS_FOR_MEMBERS");
  cluster_.Suspend(job);
  const v1::Job suspended = cluster_.AwaitState(job, v1::SUSPENDED, absl::Seconds(10));
  EXPECT_FALSE(suspended.suspend_requested());
  const int64_t step = CheckpointStepOf(suspended);
  EXPECT_EQ(suspended.message(), absl::StrCat("suspended at step ", step));
  EXPECT_GE(step, kKept);
  EXPECT_GE(step, suspended.progress().step() - 1) << "one is computed again at most";

  for (const char* worker : {"worker-0", "worker-1"}) Restart(worker);
  cluster_.Resume(job);
  EXPECT_EQ(cluster_.AwaitState(job, v1::SUCCEEDED).recovery().count(), 0);
  EXPECT_EQ(FirstSteps(Events(cluster_, job)), (std::vector<int64_t>{0, step}));
  EXPECT_EQ(cluster_.Hashes(job, kSteps), cluster_.Hashes(*undisturbed_, kSteps));
  ExpectSame(job, *undisturbed_);
}

// After the loss of a ps, half of the job's shards exist only as replicas on the other ps.
TEST_F(RecoveryTest, AJobThatLosesAPsWhileItWaitsIsSuspendedWhereItWasHalted) {
  const std::string job = cluster_.Submit(absl::StrReplaceAll(
      WithoutCheckpoints(Job("undisturbed")), {{"ps: 2}", "ps: 2, ps_replication: 2}"}}));
  AwaitMoreSteps(cluster_, job, kMiddle);
  for (const char* worker : {"worker-1", "worker-0"}) ExpectOrderlyExit(cluster_, worker);
  AwaitReason(job, "WAITS_FOR_MEMBERS");
  Kill("ps-1");
  cluster_.Suspend(job);
  const v1::Job suspended = cluster_.AwaitState(job, v1::SUSPENDED, absl::Seconds(60));
  EXPECT_THAT(suspended.message(), testing::StartsWith("suspended at step "));
  for (const char* member : {"ps-1", "worker-0", "worker-1"}) Restart(member);
  cluster_.Resume(job);
  cluster_.AwaitState(job, v1::SUCCEEDED);
  const std::vector<int64_t> first_steps = FirstSteps(Events(cluster_, job));
  ASSERT_EQ(first_steps.size(), 2u);
  EXPECT_GE(first_steps[1], kKept);
  EXPECT_EQ(cluster_.Hashes(job, kSteps), cluster_.Hashes(*undisturbed_, kSteps));
}

// A new worker warms up while the job runs, and then joins it.
TEST_F(RecoveryTest, AWorkerThatComesJoinsTheRunningJob) {
  Kill("worker-1");
  const std::string job = cluster_.Submit(WithSteps(Job("growing", /*workers_min=*/1), 1'000'000));
  cluster_.AwaitStep(job, 10);
  EXPECT_EQ(cluster_.Get(job).workers_size(), 1);
  Restart("worker-1");
  const v1::Job grown = cluster_.Await(
      job, [](const v1::Job& seen) { return seen.workers_size() == 2; }, absl::Seconds(60));
  EXPECT_EQ(grown.generation(), 2);
  cluster_.AwaitStep(job, grown.progress().step() + 10);
  EXPECT_THAT(cluster_.Logs(),
              testing::HasSubstr(absl::StrCat(job, " generation 2: goes on with what it has")))
      << "the newcomer had prepared for this very share";
  EXPECT_EQ(cluster_.Get(job).recovery().count(), 0);
  Cancel(job);
  std::vector<std::string> reasons;
  for (const v1::JobEvent& event : Events(cluster_, job)) reasons.push_back(event.reason());
  EXPECT_THAT(reasons, testing::IsSupersetOf({"WORKERS_PREPARE", "WORKERS_JOIN"}));
}

// The job writes no checkpoint before its last step, so without replicas it would start again from
// its beginning.
TEST(ReplicatedRecoveryTest, WhicheverPsDiesOrLeavesTheJobGoesOnAtItsStepToTheSameParameters) {
  TrainingCluster cluster({.ps = 3, .workers = 2, .ps_threads = 1});
  const int kLongEnough = Lengthened(1600);  // for three members that leave in turn
  const auto job_with = [kLongEnough](const std::string& replication) {
    return absl::StrReplaceAll(WithSteps(WithoutCheckpoints(Job("pair")), kLongEnough),
                               {{"ps: 2}", replication}});
  };
  const std::string alone = cluster.Run(job_with("ps: 2}"));
  const std::string job = cluster.Submit(job_with("ps: 2, ps_replication: 2}"));
  std::vector<int64_t> gone_at;  // lower bounds of the steps at which a ps was lost
  int64_t resumed_at = 0;
  for (const char* member : {"ps-1", "ps-0"}) {
    SCOPED_TRACE(member);
    // The second step of a generation waits until every replica is filled.
    AwaitMoreSteps(cluster, job, kEarly);
    gone_at.push_back(resumed_at + kEarly);
    const v1::Job before = cluster.Get(job);
    ASSERT_TRUE(cluster.members().Kill(member, SIGKILL).ok());
    const v1::Job after = cluster.Await(job, [&](const v1::Job& seen) {
      return seen.state() == v1::RUNNING && seen.generation() > before.generation();
    });
    EXPECT_THAT(after.ps(), testing::Not(testing::Contains(member)));
    resumed_at = after.recovery().resumed_step();
    ASSERT_TRUE(cluster.members().Restart(member).ok());
    ASSERT_TRUE(cluster.members().AwaitAttached(absl::Seconds(30)).ok()) << cluster.Logs();
  }
  // A member that gets SIGTERM hands over and exits with success.
  AwaitMoreSteps(cluster, job, kEarly);
  gone_at.push_back(resumed_at + kEarly);
  const v1::Job before = cluster.Get(job);
  ASSERT_EQ(before.state(), v1::RUNNING) << before.progress().step();
  ASSERT_EQ(before.ps_size(), 2);
  ExpectOrderlyExit(cluster, before.ps(0));
  EXPECT_THAT(cluster.Get(job).ps(), testing::Not(testing::Contains(before.ps(0))));

  EXPECT_EQ(cluster.AwaitState(job, v1::SUCCEEDED).recovery().count(), 2) << "of deaths";
  EXPECT_EQ(cluster.Hashes(job, kLongEnough), cluster.Hashes(alone, kLongEnough));
  const std::vector<v1::JobEvent> events = Events(cluster, job);
  EXPECT_EQ(std::ranges::count(events, "CHECKPOINT_COMMITTED", &v1::JobEvent::reason), 1)
      << "nobody needed one before the end";
  const std::vector<int64_t> first_steps = FirstSteps(events);
  ASSERT_EQ(first_steps.size(), 4u);
  for (size_t i = 0; i < gone_at.size(); ++i) EXPECT_GE(first_steps[i + 1], gone_at[i] - 1);
}

}  // namespace
}  // namespace muster::recovery_test
