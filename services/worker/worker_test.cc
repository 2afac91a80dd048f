#include "services/worker/worker.h"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/exchange/fake_ps.h"
#include "lib/graph/zoo/zoo.h"
#include "lib/limits/limits.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "services/worker/driven_worker.h"
#include "services/worker/testing/tiny_jobs.h"

namespace muster::worker_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Fate = InProcessNetwork::Fate;

// The transport fails in place of a GPU. Its error fails the job in the same way.
TEST(WorkerTest, ReportsALostDeviceAfterTheJobFailed) {
  for (const bool lost : {true, false}) {
    InProcessNetwork network;
    FakePs ps(network, LinearJob(/*workers=*/1));
    Driven worker(ps.plan(), [lost]() -> absl::StatusOr<std::unique_ptr<Transport>> {
      return WithReason(absl::InternalError("cuda:0 fell off its bus"),
                        lost ? "DEVICE_LOST" : "MEMORY_EXHAUSTED");
    });
    worker.Prepare();
    worker.Await(v1::MEMBER_PREPARED);
    worker.Start(/*total_steps=*/10);
    const v1::JobReport failed = worker.Await(v1::MEMBER_FAILED);
    EXPECT_EQ(failed.error().reason(), lost ? "DEVICE_LOST" : "MEMORY_EXHAUSTED");
    worker.Halt();
    worker.Await(v1::MEMBER_HALTED);
    EXPECT_EQ(worker.devices_lost(), lost ? 1 : 0);
    worker.Release();
  }
}

// Holds all answers to pushes of `step` from now on.
void HoldAnswersTo(InProcessNetwork& network, int64_t step) {
  network.SetFault([step](const WireHeader& header) {
    return header.kind == MessageKind::kParams && header.step == step + 1 ? Fate::kHold
                                                                          : Fate::kDeliver;
  });
}

TEST(WorkerTest, TrainsToTheEndAndKeepsRecordsUntilAcknowledged) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/1));
  Driven driven(network, ps.plan());
  EXPECT_THAT(driven.worker().Report(), IsEmpty());

  driven.Prepare();
  driven.Prepare();  // the coordinator repeats directives
  const v1::JobReport prepared = driven.Await(v1::MEMBER_PREPARED);
  EXPECT_EQ(prepared.dataset().samples(), 512);
  EXPECT_EQ(prepared.next_step(), 0);

  driven.Start(20);
  driven.Start(20);
  const v1::JobReport done = driven.Await(v1::MEMBER_DONE);
  EXPECT_EQ(done.next_step(), 20);
  EXPECT_EQ(done.steps_size(), 20);
  EXPECT_THAT(driven.Rendered(), HasSubstr("muster_worker_steps_total 20"));
  EXPECT_THAT(driven.Rendered(), HasSubstr("muster_worker_samples_total 640"));
  EXPECT_THAT(driven.Rendered(), HasSubstr("transport=\"inprocess\""));

  v1::Directive acknowledge = driven.Directive();
  acknowledge.mutable_acknowledge()->set_steps_before(18);
  driven.worker().Handle(acknowledge);
  EXPECT_EQ(driven.worker().Report()[0].steps_size(), 2);

  driven.Release();
  driven.AwaitFree();
}

// The bits of such a job depend on the devices.
TEST(WorkerTest, OnlyAJobWithLogicalWorkersReportsItsDeviceKind) {
  for (const int logical : {0, 8}) {
    InProcessNetwork network;
    FakePs::Options job = LinearJob(/*workers=*/1);
    job.spec.mutable_resources()->mutable_workers()->set_logical(logical);
    FakePs ps(network, job);
    Driven driven(network, ps.plan());
    driven.Prepare();
    const std::string kind = driven.Await(v1::MEMBER_PREPARED).device_kind();
    if (logical == 0) {
      EXPECT_EQ(kind, "");
    } else {
      EXPECT_THAT(kind, StartsWith("1 device, 1 thread, "));
    }
    driven.Release();
    driven.AwaitFree();
  }
}

TEST(WorkerTest, ReportsLinksRarelyFromTheFirstStepOn) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/1));
  Driven driven(network, ps.plan());
  driven.Prepare();
  driven.Await(v1::MEMBER_PREPARED);
  driven.Start(20);

  const v1::JobReport told =
      driven.Await([](const v1::JobReport& report) { return report.links_size() > 0; });
  ASSERT_EQ(told.links_size(), ps.plan()->shards_size());
  EXPECT_EQ(told.links(0).transport(), "inprocess");
  EXPECT_EQ(told.links(0).peer(), absl::StrCat(ps.plan()->shards(0).member(), "/0"));
  EXPECT_EQ(driven.worker().Report()[0].links_size(), 0) << "the next report has none";
  driven.Await(v1::MEMBER_DONE);
}

// Without these reports, the user and the metrics would see the end of a recovery up to a second
// late.
TEST(WorkerTest, ReportsTheFirstStepsAtOnce) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/1));
  Driven driven(network, ps.plan());
  driven.Prepare();
  driven.Await(v1::MEMBER_PREPARED);
  const int64_t before = driven.reports_due();

  driven.Start(20);
  driven.Await(v1::MEMBER_DONE);

  EXPECT_EQ(driven.reports_due() - before, 5) << "reports: running, three steps, done";
}

TEST(WorkerTest, PauseStopsBetweenStepsAndFinishesThePushedStep) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/1));
  Driven driven(network, ps.plan());
  driven.Prepare();
  driven.Await(v1::MEMBER_PREPARED);
  HoldAnswersTo(network, 5);
  driven.Start(1000);
  const int64_t chunks = ps.plan()->chunks_size();
  int64_t of_first_shard = 0;
  for (const v1::PlanChunk& chunk : ps.plan()->chunks()) of_first_shard += chunk.shard() == 0;
  ps.shard(0).AwaitPushes(6 * of_first_shard);
  ps.shard(1).AwaitPushes(6 * (chunks - of_first_shard));

  driven.Pause();  // step 6 waits for the answers to step 5
  const v1::JobReport waiting = driven.Await(v1::MEMBER_PAUSED);
  EXPECT_EQ(waiting.next_step(), 5);
  EXPECT_EQ(waiting.steps_size(), 5);

  network.SetFault(nullptr);
  network.ReleaseHeld();
  const v1::JobReport paused =
      driven.Await([](const v1::JobReport& report) { return report.next_step() == 6; });
  EXPECT_EQ(paused.state(), v1::MEMBER_PAUSED);
  EXPECT_EQ(paused.steps_size(), 6);
  driven.Release();
  driven.AwaitFree();
}

TEST(WorkerTest, PausedWorkersAgreeOnAStep) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/2));
  Driven first(network, ps.plan(), 0), second(network, ps.plan(), 1);
  for (Driven* driven : {&first, &second}) driven->Prepare();
  for (Driven* driven : {&first, &second}) driven->Await(v1::MEMBER_PREPARED);
  for (Driven* driven : {&first, &second}) driven->Start(1'000'000);
  ps.shard(0).AwaitPushes(101);
  first.Pause();
  second.Pause();
  // One worker may be a step behind while the other's pushes are in flight.
  for (;;) {
    const int64_t a = first.Await(v1::MEMBER_PAUSED).next_step();
    const int64_t b = second.Await(v1::MEMBER_PAUSED).next_step();
    ASSERT_LE(std::abs(a - b), 1);
    if (a == b) break;
  }
}

TEST(WorkerTest, ReleaseAtAnyMomentFreesTheWorkerForTheNextJob) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/1));
  Driven driven(network, ps.plan());
  HoldAnswersTo(network, 2);
  driven.Prepare();
  driven.Await(v1::MEMBER_PREPARED);
  driven.Start(1000);
  ps.shard(0).AwaitPushes(3);
  driven.Release();
  driven.AwaitFree();

  network.SetFault(nullptr);
  FakePs other_ps(network, LinearJob(/*workers=*/1));
  auto other = std::make_shared<v1::JobPlan>(*other_ps.plan());
  other->set_job("test-2");
  v1::Directive prepare;
  prepare.set_job("test-2");
  prepare.set_generation(1);
  *prepare.mutable_prepare()->mutable_plan() = *other;
  driven.worker().Handle(prepare);
  const v1::JobReport report = driven.Await(v1::MEMBER_PREPARED);
  EXPECT_EQ(report.job(), "test-2");
}

// The worker is not free, so the coordinator must not assign another job to it.
TEST(WorkerTest, AHangingReleasedJobIsReportedAsHalted) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/1));
  absl::Notification hangs, go_on;
  Driven driven(ps.plan(), [&]() -> absl::StatusOr<std::unique_ptr<Transport>> {
    hangs.Notify();
    go_on.WaitForNotification();
    return absl::UnavailableError("too late");
  });
  driven.Prepare();
  driven.Await(v1::MEMBER_PREPARED);
  driven.Start(/*total_steps=*/10);
  hangs.WaitForNotification();

  driven.Release();
  const v1::JobReport held = driven.Await(v1::MEMBER_HALTED);
  EXPECT_EQ(held.job(), ps.plan()->job());
  driven.Release();  // the coordinator repeats the directive

  v1::Directive next = driven.Directive();
  next.set_generation(2);
  *next.mutable_prepare()->mutable_plan() = *ps.plan();
  next.mutable_prepare()->mutable_plan()->set_generation(2);
  driven.worker().Handle(next);
  EXPECT_EQ(driven.Await(v1::MEMBER_PREPARING).generation(), 2u)
      << "only the newer generation is reported";
  next.mutable_release();
  driven.worker().Handle(next);
  driven.Await(v1::MEMBER_HALTED);

  go_on.Notify();
  driven.AwaitFree();
}

// A file name may contain bytes that are not valid UTF-8. The coordinator rejects a report with
// such bytes every time, so its worker used to be lost.
TEST(WorkerTest, AnErrorThatIsNotUtf8ReachesTheCoordinator) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/1));
  Driven worker(ps.plan(), []() -> absl::StatusOr<std::unique_ptr<Transport>> {
    return absl::InvalidArgumentError("/data/caf\xe9.txt: cannot be read");
  });
  worker.Prepare();
  worker.Await(v1::MEMBER_PREPARED);
  worker.Start(/*total_steps=*/10);
  const v1::JobReport failed = worker.Await(v1::MEMBER_FAILED);
  EXPECT_THAT(failed.error().message(), HasSubstr("/data/caf?.txt: cannot be read"));
  EXPECT_TRUE(v1::JobReport().ParseFromString(failed.SerializeAsString()));
}

TEST(WorkerTest, ALostPsFailsTheJobWithTheCulpritsName) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/1));
  Driven driven(network, ps.plan());
  HoldAnswersTo(network, 3);
  driven.Prepare();
  driven.Await(v1::MEMBER_PREPARED);
  driven.Start(1000);
  ps.shard(1).AwaitPushes(4);
  ps.shard(1).Stop();
  const v1::JobReport failed = driven.Await(v1::MEMBER_FAILED);
  EXPECT_EQ(failed.error().reason(), "PS_UNREACHABLE");
  EXPECT_EQ(failed.error().culprit(), "ps-1");
  EXPECT_EQ(failed.error().step(), 3);
  EXPECT_THAT(failed.error().message(), Not(StartsWith("worker-0")))
      << "the coordinator adds the member and the step";
  EXPECT_EQ(failed.error().code(), static_cast<int>(absl::StatusCode::kUnavailable));
}

TEST(WorkerTest, HaltEndsThePresentStepAndReportsItsLoss) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/1));
  Driven driven(network, ps.plan());
  HoldAnswersTo(network, 3);
  driven.Prepare();
  driven.Await(v1::MEMBER_PREPARED);
  driven.Start(1000);
  const int64_t chunks = ps.plan()->chunks_size();
  ps.shard(0).AwaitPushes(4);
  ps.shard(1).AwaitPushes(4 * (chunks - 1));
  driven.Halt();
  driven.Halt();
  const v1::JobReport halted = driven.Await(v1::MEMBER_HALTED);
  EXPECT_FALSE(halted.has_error());
  EXPECT_EQ(halted.next_step(), 3);
  ASSERT_EQ(halted.steps_size(), 4);
  EXPECT_EQ(halted.steps(3).step(), 3);
  EXPECT_TRUE(std::isfinite(halted.steps(3).loss_share()));
  EXPECT_TRUE(std::isnan(halted.steps(3).gradient_norm())) << "no answer reported it";
}

TEST(WorkerTest, HaltsAFailedOrWaitingJob) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/1));
  Driven waiting(network, ps.plan());
  waiting.Prepare();
  waiting.Await(v1::MEMBER_PREPARED);
  waiting.Halt();
  waiting.Await(v1::MEMBER_HALTED);

  Driven failing(network, ps.plan());
  failing.Prepare();
  failing.Await(v1::MEMBER_PREPARED);
  ps.shard(1).Stop();
  failing.Start(1000);
  failing.Await(v1::MEMBER_FAILED);
  failing.Halt();
  failing.Await(v1::MEMBER_HALTED);
  failing.Release();
  failing.AwaitFree();
}

TEST(WorkerTest, AMissedEvaluationRunsFirst) {
  InProcessNetwork network;
  FakePs::Options options = TextJob(testing::TempDir() + "/worker_test_first.txt", /*workers=*/1);
  options.spec.mutable_training()->set_evaluate_every_steps(4);
  FakePs ps(network, options);
  auto plan = std::make_shared<v1::JobPlan>(*ps.plan());
  plan->set_evaluate_first(true);
  Driven driven(network, plan);
  driven.Prepare();
  driven.Await(v1::MEMBER_PREPARED);
  driven.Start(4);
  const v1::JobReport done = driven.Await(v1::MEMBER_DONE);
  ASSERT_EQ(done.evaluations_size(), 2);
  EXPECT_EQ(done.evaluations(0).step(), 0);
  EXPECT_EQ(done.evaluations(1).step(), 4);
}

TEST(WorkerTest, MissingDataFailsThePreparation) {
  InProcessNetwork network;
  FakePs::Options options = TextJob(testing::TempDir() + "/worker_test.txt", /*workers=*/1);
  options.spec.mutable_data()->mutable_text()->set_path("/nope");
  FakePs ps(network, options);
  Driven driven(network, ps.plan());
  driven.Prepare();
  const v1::JobReport failed = driven.Await(v1::MEMBER_FAILED);
  EXPECT_EQ(failed.error().reason(), "DATA_NOT_FOUND");
  EXPECT_THAT(failed.error().message(), HasSubstr("data.text.path"));
}

TEST(WorkerTest, AProgramThatTheWorkerMayNotStartFailsThePreparation) {
  InProcessNetwork network;
  FakePs::Options options = TextJob(testing::TempDir() + "/worker_test.txt", /*workers=*/1);
  options.spec.mutable_program()->add_command("python3");
  FakePs ps(network, options);
  Driven driven(network, ps.plan());
  driven.Prepare();
  EXPECT_EQ(driven.Await(v1::MEMBER_FAILED).error().reason(), "PROGRAMS_NOT_ALLOWED");
}

TEST(WorkerTest, AModelThatExceedsMemoryFailsThePreparation) {
  InProcessNetwork network;
  FakePs::Options options = TextJob(testing::TempDir() + "/worker_test_memory.txt", /*workers=*/1);
  FakePs ps(network, options);
  auto plan = std::make_shared<v1::JobPlan>(*ps.plan());
  auto& arguments = *plan->mutable_spec()->mutable_model()->mutable_zoo()->mutable_args();
  (*arguments.mutable_fields())["vocabulary"].set_number_value(1 << 24);
  (*arguments.mutable_fields())["channels"].set_number_value(1 << 14);
  *plan->mutable_graph() = BuildModel(plan->spec().model()).value();
  const auto chunks = CutIntoChunks(plan->graph(), limits::kChunkBytesMax);
  plan->mutable_chunks()->Assign(chunks.begin(), chunks.end());
  Driven driven(network, plan);

  driven.Prepare();

  const v1::JobReport failed = driven.Await(v1::MEMBER_FAILED);
  EXPECT_EQ(failed.error().code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(failed.error().reason(), "MEMORY_EXHAUSTED");
  EXPECT_THAT(failed.error().message(), HasSubstr("use fewer parameters"));
  driven.Release();
}

TEST(WorkerTest, AnInvalidPlanFailsThePreparation) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/1));
  for (const int64_t samples : {int64_t{-1}, int64_t{0}, int64_t{33}, int64_t{1} << 62}) {
    auto plan = std::make_shared<v1::JobPlan>(*ps.plan());
    plan->mutable_workers(0)->set_samples(samples);
    Driven driven(network, plan);
    driven.Prepare();
    const v1::JobReport failed = driven.Await(v1::MEMBER_FAILED);
    EXPECT_EQ(failed.error().reason(), "BAD_PLAN");
    EXPECT_THAT(failed.error().message(), HasSubstr("of a batch of 32"));
    driven.Release();
  }
}

// The model of a job never changes, but a faulty coordinator may send another one. The worker must
// not reuse the memory and compiled graphs of the first generation for it.
TEST(WorkerTest, PreparesAnotherModelInTheNextGeneration) {
  InProcessNetwork network;
  FakePs line(network, LinearJob(/*workers=*/1));
  FakePs text(network, TextJob(testing::TempDir() + "/worker_test_other.txt", /*workers=*/1));
  Driven driven(network, line.plan());
  driven.Prepare();
  driven.Await(v1::MEMBER_PREPARED);
  v1::Directive next = driven.Directive();
  next.set_generation(2);
  v1::JobPlan& plan = *next.mutable_prepare()->mutable_plan() = *text.plan();
  plan.set_generation(2);
  plan.mutable_workers(0)->set_samples(line.plan()->workers(0).samples());
  plan.mutable_spec()->mutable_data()->set_batch_size(line.plan()->spec().data().batch_size());
  driven.worker().Handle(next);
  const v1::JobReport prepared = driven.Await([](const v1::JobReport& report) {
    return report.generation() == 2 && report.state() == v1::MEMBER_PREPARED;
  });
  EXPECT_GT(prepared.dataset().evaluation_samples(), 0) << "the dataset of the text job";
}

TEST(WorkerTest, ANewGenerationReplacesTheOldOneAndIgnoresItsDirectives) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/1));
  Driven driven(network, ps.plan());
  driven.Prepare();
  driven.Await(v1::MEMBER_PREPARED);
  v1::Directive newer = driven.Directive();
  newer.set_generation(2);
  *newer.mutable_prepare()->mutable_plan() = *ps.plan();
  newer.mutable_prepare()->mutable_plan()->set_generation(2);
  driven.worker().Handle(newer);
  driven.Release();  // of generation 1
  driven.Prepare();
  const v1::JobReport report = driven.Await([](const v1::JobReport& report) {
    return report.generation() == 2 && report.state() == v1::MEMBER_PREPARED;
  });
  EXPECT_EQ(report.job(), "test-1");
}

TEST(WorkerTest, TheNextGenerationReusesTheTrainerOfTheWarmUp) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/2));
  v1::JobPlan warmed_up = *ps.plan();
  warmed_up.set_generation(warmed_up.generation() - 1);
  warmed_up.set_rehearsal(7);
  Driven driven(network, ps.plan(), /*rank=*/1);
  v1::Directive warm_up = driven.Directive();
  warm_up.set_generation(warmed_up.generation());
  *warm_up.mutable_prepare()->mutable_plan() = warmed_up;
  driven.worker().Handle(warm_up);
  driven.worker().Handle(warm_up);
  const v1::JobReport ready = driven.Await(v1::MEMBER_PREPARED);
  EXPECT_EQ(ready.rehearsal(), 7u);
  EXPECT_EQ(ready.generation(), warmed_up.generation());
  const auto compiled = [&] {
    const std::string text = driven.Rendered();
    const size_t at = text.find("muster_worker_start_phase_seconds{phase=\"compile\"}");
    return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
  };
  const std::string before = compiled();
  EXPECT_NE(before, "");

  driven.Prepare();
  const v1::JobReport prepared = driven.Await([&](const v1::JobReport& report) {
    return report.generation() == ps.plan()->generation() && report.state() == v1::MEMBER_PREPARED;
  });
  EXPECT_EQ(prepared.rehearsal(), 0u);
  EXPECT_EQ(compiled(), before) << "nothing was compiled again";
  driven.worker().Handle(warm_up);
  EXPECT_EQ(driven.worker().Report()[0].generation(), ps.plan()->generation())
      << "the warm-up is over";
  driven.Release();
}

TEST(WorkerTest, AnotherJobOrWarmUpEndsAWarmUp) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/2));
  Driven driven(network, ps.plan());
  v1::JobPlan plan = *ps.plan();
  const auto warm_up = [&](uint64_t number) {
    plan.set_rehearsal(number);
    v1::Directive directive = driven.Directive();
    directive.set_job(plan.job());
    *directive.mutable_prepare()->mutable_plan() = plan;
    driven.worker().Handle(directive);
    const v1::JobReport report = driven.Await([&](const v1::JobReport& report) {
      return report.rehearsal() == number && report.state() == v1::MEMBER_PREPARED;
    });
    EXPECT_EQ(report.job(), plan.job());
  };
  warm_up(7);
  warm_up(8);
  plan.set_job("another-2");
  plan.set_job_number(2);
  warm_up(9);

  driven.Prepare();
  const v1::JobReport prepared = driven.Await(v1::MEMBER_PREPARED);
  EXPECT_EQ(prepared.job(), ps.plan()->job());
  EXPECT_EQ(prepared.rehearsal(), 0u);
  driven.Release();
}

TEST(WorkerTest, WithoutACoordinatorTheJobIsDropped) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/1));
  Driven driven(network, ps.plan());
  driven.Prepare();
  driven.Await(v1::MEMBER_PREPARED);
  driven.worker().CoordinatorLost();
  driven.AwaitFree();
}

TEST(WorkerTest, FinishStepLeavesNoStepHalfDone) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/1));
  Driven driven(network, ps.plan());
  driven.worker().FinishStep(absl::Seconds(30));  // nothing to do
  driven.Prepare();
  driven.Await(v1::MEMBER_PREPARED);
  driven.Start(1'000'000);
  ps.shard(0).AwaitPushes(50);
  driven.worker().FinishStep(absl::Seconds(30));
  const v1::JobReport report = driven.worker().Report().at(0);
  EXPECT_EQ(report.state(), v1::MEMBER_PAUSED);
  EXPECT_GE(report.next_step(), 49);
  EXPECT_EQ(report.steps_size(), report.next_step());
}

}  // namespace
}  // namespace muster::worker_test
