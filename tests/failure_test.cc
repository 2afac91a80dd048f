// Processes die while jobs may not restart (max_restarts: 0). A job survives the coordinator's
// death. Any other death is a prompt error that names the culprit. recovery_test has jobs that
// recover.
#include <signal.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/status/grpc_status.h"
#include "tests/member_exit.h"
#include "tests/training_cluster.h"

namespace muster::failure_test {
namespace {

using ::testing::HasSubstr;

std::string Job(const std::string& name, int steps) {
  return absl::Substitute(R"(
name: $0
model: {zoo: {name: gpt, args: {layers: 2, heads: 2, channels: 64, context: 32}}}
data: {text: {path: examples/data/licences}, batch_size: 8, seed: 1}
training: {steps: $1, optimizer: {adamw: {learning_rate: 1e-3}}, seed: 9}
resources: {workers: {min: 2, max: 2}, ps: 2}
checkpoint: {every_steps: 50, keep_last: 0}
restart: {max_restarts: 0}
)",
                          name, steps);
}

// Returns the events of the job so far, at most 500: those of one message. The coordinator may
// still be restarting.
std::vector<v1::JobEvent> Events(TrainingCluster& cluster, const std::string& job) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  std::vector<v1::JobEvent> events;
  while (events.empty() && absl::Now() < deadline) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(absl::ToChronoTime(deadline));
    v1::WatchJobRequest request;
    request.set_name(job);
    auto stream = cluster.jobs().WatchJob(&context, request);
    v1::WatchJobResponse response;
    if (stream->Read(&response)) {
      events.assign(response.events().begin(), response.events().end());
    }
    context.TryCancel();
    stream->Finish();
  }
  return events;
}

TEST(FailureTest, ARunSurvivesKillingTheCoordinatorAndLosesNothing) {
  TrainingCluster cluster({.ps = 2, .workers = 2, .ps_threads = 1});
  const std::string undisturbed = cluster.Run(Job("undisturbed", 400));
  const std::string queued_spec = Job("queued", 3);
  const std::string job = cluster.Submit(Job("disturbed", 400));
  const std::string queued = cluster.Submit(queued_spec);

  for (int64_t step : {60, 160, 260}) {
    cluster.AwaitStep(job, step);
    const auto events = Events(cluster, job);
    ASSERT_TRUE(cluster.members().Kill("coordinator", SIGKILL).ok());
    ASSERT_TRUE(cluster.members().Restart("coordinator").ok());
    const auto after = Events(cluster, job);
    ASSERT_GE(after.size(), events.size());
    for (size_t i = 0; i < events.size(); ++i)
      EXPECT_EQ(after[i].SerializeAsString(), events[i].SerializeAsString());
  }
  cluster.AwaitState(job, v1::SUCCEEDED);
  cluster.AwaitState(queued, v1::SUCCEEDED);

  EXPECT_EQ(cluster.Metrics(job), cluster.Metrics(undisturbed));
  EXPECT_EQ(cluster.Parameters(job, 400), cluster.Parameters(undisturbed, 400));
  for (int64_t step = 50; step <= 400; step += 50) {
    EXPECT_EQ(cluster.Hashes(job, step).size(), cluster.Hashes(undisturbed, step).size()) << step;
  }
  EXPECT_EQ(cluster.Get(undisturbed).state(), v1::SUCCEEDED);
}

// Kills or stops one member during a run. Expects the named failure within ten seconds.
void ExpectNamedFailure(const std::string& member, int signal) {
  SCOPED_TRACE(absl::StrCat(member, " gets signal ", signal));
  TrainingCluster cluster({.ps = 2, .workers = 2, .ps_threads = 1});
  const std::string job = cluster.Submit(Job("doomed", 1'000'000));
  cluster.AwaitStep(job, 30);

  const absl::Time killed = absl::Now();
  ASSERT_TRUE(cluster.members().Kill(member, signal).ok());
  const v1::Job failed = cluster.AwaitState(job, v1::FAILED, absl::Seconds(30));

  EXPECT_LE(absl::Now() - killed, absl::Seconds(10));
  EXPECT_THAT(failed.message(), HasSubstr(member));
  EXPECT_THAT(failed.message(), HasSubstr("step "));
  EXPECT_NE(failed.reason(), "");

  // The survivors are free again, and the pool is complete after the dead member restarts.
  if (signal == SIGSTOP) {
    ASSERT_TRUE(cluster.members().Kill(member, SIGCONT).ok());
  } else {
    ASSERT_TRUE(cluster.members().Restart(member).ok());
  }
  const std::string next = cluster.Submit(Job("next", 5));
  cluster.AwaitState(next, v1::SUCCEEDED, absl::Seconds(60));
}

TEST(FailureTest, AKilledWorkerIsNamedWithinTenSeconds) { ExpectNamedFailure("worker-1", SIGKILL); }

TEST(FailureTest, AKilledPsIsNamedWithinTenSeconds) { ExpectNamedFailure("ps-1", SIGKILL); }

TEST(FailureTest, AStoppedWorkerIsNamedWithinTenSeconds) {
  ExpectNamedFailure("worker-0", SIGSTOP);
}

TEST(FailureTest, AStoppedPsIsNamedWithinTenSeconds) { ExpectNamedFailure("ps-0", SIGSTOP); }

// The first two members exit while the coordinator runs, the last two after it has exited.
TEST(FailureTest, SigtermEndsEveryIdleRoleInOrder) {
  TrainingCluster cluster({.ps = 2, .workers = 2, .ps_threads = 1});
  for (const char* member : {"worker-0", "ps-0", "coordinator", "worker-1", "ps-1"}) {
    const absl::Duration begin = SteadyNow();
    ExpectOrderlyExit(cluster, member);
    const absl::Duration took = SteadyNow() - begin;
    std::cout << member << " ended within " << took << "\n";
    EXPECT_LT(took, absl::Seconds(2)) << member << ": 0.3 s are promised, of a machine of its own";
  }
}

// After SIGTERM a member waits up to 5 s for a paused coordinator to close its stream. A second
// signal ends that wait.
TEST(FailureTest, AnotherSignalEndsWhoeverIsEndingAtOnce) {
  TrainingCluster cluster({.ps = 1, .workers = 1, .ps_threads = 1});
  MemberExit coordinator(&cluster, "coordinator");
  ASSERT_TRUE(cluster.members().Kill("coordinator", SIGSTOP).ok());
  coordinator.AwaitStop();
  for (const char* member : {"worker-0", "ps-0"}) {
    SCOPED_TRACE(member);
    MemberExit exit(&cluster, member);
    ASSERT_TRUE(cluster.members().Kill(member, SIGTERM).ok());
    EXPECT_TRUE(absl::IsDeadlineExceeded(cluster.members().AwaitExit(member, absl::Seconds(1))));
    ASSERT_TRUE(cluster.members().Kill(member, SIGTERM).ok());
    exit.Expect(128 + SIGTERM);
  }
  // The coordinator finds both signals when it resumes, and must still exit in order. GNU timeout
  // also sends a signal twice: to the process and to its group.
  for (const int signal : {SIGINT, SIGTERM, SIGCONT}) {
    ASSERT_TRUE(cluster.members().Kill("coordinator", signal).ok());
  }
  coordinator.Expect(0);
}

// Members exit if the coordinator's store was wiped. If they stayed, they would look attached but
// ignore every directive, because the terms of the new coordinator begin again.
TEST(FailureTest, MembersOfAWipedClusterEndAndSayWhy) {
  TrainingCluster cluster({.ps = 1, .workers = 1, .ps_threads = 1});
  MemberExit worker(&cluster, "worker-0"), ps(&cluster, "ps-0");
  ASSERT_TRUE(cluster.members().Kill("coordinator", SIGKILL).ok());
  std::filesystem::remove_all(cluster.state_dir());

  ASSERT_TRUE(cluster.members().Restart("coordinator").ok());

  worker.Expect(77);
  ps.Expect(77);
  EXPECT_THAT(cluster.Logs(), HasSubstr("CLUSTER_CHANGED"));
}

// The coordinator stops first. The members would wait for it to come back, so Shutdown() signals
// them a second time.
TEST(FailureTest, AClusterWhoseJobRunsIsStoppedAtOnce) {
  TrainingCluster cluster({.ps = 2, .workers = 2, .ps_threads = 1});
  cluster.AwaitStep(cluster.Submit(Job("long", 1'000'000)), 10);
  const absl::Duration begin = SteadyNow();
  cluster.members().Shutdown(/*grace=*/absl::Minutes(1));
  const absl::Duration took = SteadyNow() - begin;
  std::cout << "stopped within " << took << "\n";
  EXPECT_LT(took, absl::Seconds(10)) << "members waited for the coordinator";
}

TEST(FailureTest, CancellingFreesTheMembersAtOnce) {
  TrainingCluster cluster({.ps = 2, .workers = 2, .ps_threads = 1});
  const std::string job = cluster.Submit(Job("long", 1'000'000));
  cluster.AwaitStep(job, 10);
  grpc::ClientContext context;
  v1::CancelJobRequest request;
  v1::Job answer;
  request.set_name(job);

  ASSERT_TRUE(cluster.jobs().CancelJob(&context, request, &answer).ok());

  EXPECT_EQ(answer.state(), v1::CANCELLED);
  cluster.AwaitState(cluster.Submit(Job("next", 5)), v1::SUCCEEDED, absl::Seconds(60));
}

}  // namespace
}  // namespace muster::failure_test
