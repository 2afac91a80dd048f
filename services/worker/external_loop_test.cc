#include "services/worker/external_loop.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/exchange/fake_ps.h"
#include "lib/plan/endless_data.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "services/worker/driven_worker.h"
#include "services/worker/program/fake_program.h"
#include "services/worker/program/program_port.h"
#include "services/worker/testing/tiny_jobs.h"

namespace muster::external_loop_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr int kW = 0, kFrozen = 1, kB = 2;  // parameters

// A worker with a socket for programs.
struct Member {
  Member(InProcessNetwork& network, const FakePs& ps, int rank = 0)
      : port(ProgramPort::Listen(NewSocketPath()).value()),
        worker(
            ps.plan(), [&network] { return network.MakeTransport(); }, rank, port.get()) {}
  std::unique_ptr<ProgramPort> port;
  Driven worker;
};

TEST(ExternalLoopTest, TwoProgramsLearnALine) {
  InProcessNetwork network;
  FakePs ps(network, ProgramJob(/*workers=*/2));
  Member first(network, ps, 0), second(network, ps, 1);
  json ends[2];
  {
    std::vector<std::jthread> programs;
    for (int rank = 0; rank < 2; ++rank) {
      programs.emplace_back([&, rank] {
        FakeProgram program((rank == 0 ? first : second).port->path());
        program.Attach();
        ends[rank] = program.TrainLine();
      });
    }
    for (Member* member : {&first, &second}) {
      member->worker.Prepare();
      EXPECT_EQ(member->worker.Await(v1::MEMBER_PREPARED).dataset().samples(), 512);
      member->worker.Start(/*total_steps=*/100);
    }
  }
  for (const json& end : ends) EXPECT_EQ(end["reason"], "done");
  EXPECT_NEAR(ps.parameter(kW)[0], 3, 0.03);
  EXPECT_NEAR(ps.parameter(kB)[0], -0.5, 0.01);

  const v1::JobReport done = first.worker.Await(v1::MEMBER_DONE);
  ASSERT_EQ(done.steps_size(), 100);
  for (int s = 0; s < 100; ++s) {
    EXPECT_EQ(done.steps(s).step(), s);
    EXPECT_FALSE(done.steps(s).has_no_loss());
  }
  EXPECT_EQ(done.steps(7).learning_rate(), 0.3);
  EXPECT_GT(done.steps(0).gradient_norm(), 0);
  EXPECT_GT(done.steps(0).loss_share(), done.steps(99).loss_share());
  EXPECT_DOUBLE_EQ(done.steps(5).metric_shares().at("twice"), 2 * done.steps(5).loss_share());
  EXPECT_FALSE(done.has_program_wait());
  EXPECT_THAT(first.worker.Rendered(), HasSubstr("muster_worker_steps_total 100"));
}

// Returns the parameters of the ps.
std::vector<std::vector<float>> ValuesOf(const FakePs& ps) {
  return {ps.parameter(kW), ps.parameter(kFrozen), ps.parameter(kB)};
}

v1::Directive PrepareOf(const v1::JobPlan& plan) {
  v1::Directive directive;
  directive.set_term(1);
  directive.set_job(plan.job());
  directive.set_generation(plan.generation());
  *directive.mutable_prepare()->mutable_plan() = plan;
  return directive;
}

// A job of one worker with a program, which has run `steps` steps and has begun the next one.
struct Running {
  explicit Running(int64_t steps, FakePs::Options job = ProgramJob(/*workers=*/1))
      : options(std::move(job)),
        ps(network, options),
        member(network, ps),
        program(std::make_unique<FakeProgram>(member.port->path())) {
    member.worker.Prepare();
    program->Attach();
    member.worker.Await(v1::MEMBER_PREPARED);
    member.worker.Start(/*total_steps=*/1000);
    json finished;
    for (int64_t step = 0; step < steps; ++step) {
      program->Next(finished);
      finished = Compute();
    }
    program->Next(finished);
    values = ValuesOf(ps);
  }

  // Computes and announces the step. Returns FINISHED.
  json Compute() {
    const double loss = program->ComputeLine();
    program->Announce({{.parameter = kB}, {.parameter = kW}});
    return program->Finished(loss);
  }
  // Returns the pushes that the ps got.
  static std::vector<PushedTerms> Terms(FakePs& of) {
    std::vector<PushedTerms> terms = of.shard(0).terms();
    for (const PushedTerms& more : of.shard(1).terms()) terms.push_back(more);
    return terms;
  }
  static int64_t pushes(FakePs& of) { return static_cast<int64_t>(Terms(of).size()); }
  // Blocks until the ps got all pushes of so many steps.
  static void AwaitSteps(FakePs& of, int64_t steps) {
    int64_t pushes[2] = {};
    for (const v1::PlanChunk& chunk : of.plan()->chunks()) {
      pushes[chunk.shard()] += chunk.parameter() == kFrozen ? 0 : steps;
    }
    for (int shard = 0; shard < 2; ++shard) of.shard(shard).AwaitPushes(pushes[shard]);
  }
  // Announces one parameter and blocks until its push is at the ps.
  void AnnounceAndAwait(int parameter) {
    program->ComputeLine();
    int shard = 0;
    for (const v1::PlanChunk& chunk : ps.plan()->chunks()) {
      if (chunk.parameter() == parameter) shard = chunk.shard();
    }
    const auto before = static_cast<int64_t>(ps.shard(shard).terms().size());
    program->Announce({{.parameter = parameter}});
    ps.shard(shard).AwaitPushes(before + 1);
  }
  // Halts the generation and makes the ps of the next one, which begins at `first_step`.
  FakePs& Recover(int64_t first_step, int workers = 1) {
    member.worker.Halt();
    member.worker.Await(v1::MEMBER_HALTED);
    FakePs::Options next = options;
    next.generation = 2;
    next.first_step = first_step;
    next.workers = workers;
    next.values = values;
    ps2 = std::make_unique<FakePs>(network, next);
    member.worker.worker().Handle(PrepareOf(*ps2->plan()));
    member.worker.Await([](const v1::JobReport& report) {
      return report.generation() == 2 && report.state() == v1::MEMBER_PREPARED;
    });
    v1::Directive start = PrepareOf(*ps2->plan());
    start.mutable_start()->set_total_steps(1000);
    member.worker.worker().Handle(start);
    return *ps2;
  }

  InProcessNetwork network;
  FakePs::Options options;
  FakePs ps;
  Member member;
  std::unique_ptr<FakeProgram> program;
  std::vector<std::vector<float>> values;  // of the step that has begun
  std::unique_ptr<FakePs> ps2;
};

TEST(ExternalLoopTest, WelcomeDescribesTheModel) {
  Running job(0);
  const json& welcome = job.program->welcome();
  EXPECT_EQ(welcome["job"], "test-1");
  EXPECT_EQ(welcome["member"], "worker-0");
  EXPECT_EQ(welcome["batch_size"], 32);
  EXPECT_EQ(welcome["seed"], 7);
  EXPECT_EQ(welcome["has_schedule"], false);
  EXPECT_EQ(welcome["elements"], 48);
  EXPECT_EQ(welcome["optimizer"]["kind"], "sgd");
  EXPECT_EQ(welcome["groups"][0]["learning_rate"], 0.3);
  const json frozen = {{"name", "frozen"},   {"shape", {3}},   {"offset", 16},
                       {"statistic", false}, {"frozen", true}, {"group", 1}};
  EXPECT_EQ(welcome["parameters"][kFrozen], frozen);
  const json& begin = job.program->begin();
  EXPECT_EQ(begin["step"], 0);
  EXPECT_EQ(begin["samples"], 32);
  EXPECT_EQ(begin["total_steps"], 1000);
  EXPECT_TRUE(begin["learning_rate"].is_null());
  for (const int64_t version : {0, 1}) {
    EXPECT_EQ(job.program->values(kFrozen, version)[2], job.values[kFrozen][2]) << "both memories";
  }
}

TEST(ExternalLoopTest, TheNextGenerationPushesAgainAndTheProgramNoticesNothing) {
  Running job(3);
  job.AnnounceAndAwait(kB);
  const json before = job.program->begin();
  FakePs& next = job.Recover(/*first_step=*/3);
  job.program->Announce({{.parameter = kW}});
  const json begin = job.program->Next(job.program->Finished(0.25));
  EXPECT_EQ(begin["step"], 4);
  EXPECT_EQ(begin["attempt"], before["attempt"].get<int64_t>() + 1);
  EXPECT_EQ(begin["generation"], 2);
  EXPECT_EQ(job.pushes(next), 2);

  const v1::JobReport report = job.member.worker.worker().Report()[0];
  ASSERT_EQ(report.steps_size(), 1);
  EXPECT_EQ(report.steps(0).step(), 3);
  EXPECT_EQ(report.steps(0).loss_share(), 0.25);
  // The program now computes an undisturbed step.
  job.program->ComputeLine();
  EXPECT_NE(job.program->values(kW)[0], job.values[kW][0]);
  EXPECT_EQ(job.program->values(kW)[0], next.parameter(kW)[0]);
}

TEST(ExternalLoopTest, AComputedStepThatWasNotAnsweredIsPushedAgain) {
  Running job(3);
  const json finished = job.Compute();
  FakePs& next = job.Recover(/*first_step=*/3);
  EXPECT_EQ(job.program->Next(finished)["step"], 4);
  EXPECT_EQ(job.pushes(next), 2);
}

TEST(ExternalLoopTest, AStepThatIsCompleteContinuesWithTheNext) {
  Running job(3);
  const json finished = job.Compute();
  Running::AwaitSteps(job.ps, 4);
  FakePs& next = job.Recover(/*first_step=*/4);
  EXPECT_EQ(job.program->Next(finished)["step"], 4);
  EXPECT_EQ(job.pushes(next), 0);
}

TEST(ExternalLoopTest, AnotherShareOfTheBatchBeginsTheStepAgain) {
  Running job(3);
  job.AnnounceAndAwait(kB);
  FakePs& next = job.Recover(/*first_step=*/3, /*workers=*/2);
  job.program->Announce({{.parameter = kW}});  // of an attempt that does not count any more
  const json begin = job.program->Next(job.program->Finished(0.25));
  EXPECT_EQ(begin["step"], 3);
  EXPECT_EQ(begin["samples"], 16);
  EXPECT_EQ(begin["workers"], 2);
  EXPECT_EQ(job.pushes(next), 0);
  job.Compute();
  Running::AwaitSteps(next, 1);
  for (const PushedTerms& terms : Running::Terms(next)) EXPECT_EQ(terms.weight, 0.5f);
}

TEST(ExternalLoopTest, AProgramThatIsInTheMiddleOfAStepNeedNotFinishItAfterAChange) {
  Running job(3);
  job.AnnounceAndAwait(kB);
  job.Recover(/*first_step=*/1);
  EXPECT_EQ(job.program->Next()["step"], 1);
  EXPECT_EQ(job.program->values(kW)[0], job.values[kW][0]);
}

TEST(ExternalLoopTest, AnotherProgramTakesTheStepOfAKilledOne) {
  Running job(3);
  job.AnnounceAndAwait(kB);
  const int64_t before = job.pushes(job.ps);
  job.program->Die();
  const v1::JobReport waits = job.member.worker.Await([](const v1::JobReport& report) {
    return report.has_program_wait() && !report.program_wait().attached();
  });
  EXPECT_EQ(waits.state(), v1::MEMBER_RUNNING);

  job.program = std::make_unique<FakeProgram>(job.member.port->path());
  job.program->Attach();
  EXPECT_EQ(job.program->Next()["step"], 3);
  const v1::JobReport computes = job.member.worker.worker().Report()[0];
  EXPECT_TRUE(computes.program_wait().attached());
  const json finished = job.Compute();
  EXPECT_EQ(job.program->Next(finished)["step"], 4);
  EXPECT_EQ(job.pushes(job.ps) - before, 1) << "the first program pushed the other parameter";
  EXPECT_EQ(job.member.worker.worker().Report()[0].steps_size(), 4);
}

TEST(ExternalLoopTest, APauseAbandonsAStepOfWhichNothingWasPushed) {
  Running job(3);
  job.member.worker.Pause();
  const v1::JobReport paused = job.member.worker.Await(v1::MEMBER_PAUSED);
  EXPECT_EQ(paused.next_step(), 3);
  job.member.worker.Release();
  job.member.worker.AwaitFree();
  job.program->ComputeLine();
  job.program->Announce({{.parameter = kB}});
  EXPECT_EQ(job.program->Next()["reason"], "suspended");
}

TEST(ExternalLoopTest, APauseCompletesAStepOfWhichAGradientWasPushed) {
  Running job(3);
  job.AnnounceAndAwait(kB);
  job.member.worker.Pause();
  EXPECT_EQ(job.member.worker.worker().Report()[0].state(), v1::MEMBER_RUNNING);
  job.program->Announce({{.parameter = kW}});
  job.program->Send(ProgramMessageKind::kNext, {{"finished", job.program->Finished(0.5)}});
  const v1::JobReport paused = job.member.worker.Await(v1::MEMBER_PAUSED);
  const v1::JobReport drained =
      job.member.worker.Await([](const v1::JobReport& report) { return report.next_step() == 4; });
  ASSERT_EQ(drained.steps_size(), 4);
  EXPECT_EQ(drained.steps(3).loss_share(), 0.5);
  job.member.worker.Release();
  EXPECT_EQ(job.program->Await(ProgramMessageKind::kEnd)["reason"], "suspended");
}

TEST(ExternalLoopTest, AWorkerThatLeavesSaysSo) {
  Running job(2);
  job.member.worker.worker().Leave();
  job.member.worker.worker().FinishStep(absl::Seconds(30));
  job.member.worker.Release();
  job.member.worker.AwaitFree();
  job.program->Announce({{.parameter = kB}, {.parameter = kW}});
  EXPECT_EQ(job.program->Next()["reason"], "drained");
}

TEST(ExternalLoopTest, AProgramsErrorFailsTheJob) {
  Running job(3);
  job.AnnounceAndAwait(kB);
  job.program->Send(ProgramMessageKind::kFailed, {{"message", "Traceback: ZeroDivisionError"}});
  const v1::JobReport failed = job.member.worker.Await(v1::MEMBER_FAILED);
  EXPECT_EQ(failed.error().reason(), "PROGRAM_FAILED");
  EXPECT_EQ(failed.error().step(), 3);
  EXPECT_THAT(failed.error().message(), HasSubstr("ZeroDivisionError"));
  job.member.worker.Release();
  job.member.worker.AwaitFree();
}

TEST(ExternalLoopTest, AnErrorOfAnotherProcessOfTheProgramFailsTheJob) {
  Running job(3);
  FakeProgram follower(job.member.port->path());
  follower.Join("test-1", /*process=*/1);
  follower.Send(ProgramMessageKind::kFailed, {{"message", "CUDA error"}});
  const v1::JobReport failed = job.member.worker.Await(v1::MEMBER_FAILED);
  EXPECT_EQ(failed.error().reason(), "PROGRAM_FAILED");
  EXPECT_THAT(failed.error().message(), HasSubstr("CUDA error"));
}

TEST(ExternalLoopTest, ALossThatIsNotFiniteFailsTheJob) {
  for (const bool ignored : {false, true}) {
    FakePs::Options options = ProgramJob(/*workers=*/1);
    if (ignored) options.spec.set_on_non_finite(v1::NON_FINITE_IGNORE);
    Running job(3, options);
    job.Compute();
    job.program->Send(ProgramMessageKind::kNext,
                      {{"finished", job.program->Finished(std::nan(""))}});
    if (ignored) {
      EXPECT_EQ(job.program->Await(ProgramMessageKind::kBegin)["step"], 4);
      continue;
    }
    const v1::JobReport failed = job.member.worker.Await(v1::MEMBER_FAILED);
    EXPECT_EQ(failed.error().reason(), "LOSS_NOT_FINITE");
    EXPECT_EQ(failed.error().step(), 3);
    EXPECT_THAT(failed.error().message(), HasSubstr("the loss of step 3 is nan"));
    job.member.worker.Release();
    const json end = job.program->Await(ProgramMessageKind::kEnd);
    EXPECT_EQ(end["reason"], "failed");
    EXPECT_THAT(end["message"].get<std::string>(), HasSubstr("the loss of step 3 is nan"));
  }
}

TEST(ExternalLoopTest, AGradientThatIsNotFiniteIsNamed) {
  Running job(3);
  job.program->gradient(kW)[0] = std::nanf("");
  job.program->gradient(kB)[0] = 1;
  job.program->Announce({{.parameter = kB}, {.parameter = kW}});
  job.program->Send(ProgramMessageKind::kNext, {{"finished", job.program->Finished(1)}});
  const v1::JobReport failed = job.member.worker.Await(v1::MEMBER_FAILED);
  EXPECT_EQ(failed.error().reason(), "LOSS_NOT_FINITE");
  EXPECT_THAT(failed.error().message(), HasSubstr("; the gradient of 'w' is not finite"));
}

TEST(ExternalLoopTest, AnEvaluationIsRecordedAndItsResultReturned) {
  Running job(2);
  job.program->Announce({{.parameter = kB, .flags = 1}, {.parameter = kW, .flags = 1}});
  job.program->Send(ProgramMessageKind::kEvaluation,
                    {{"step", 2}, {"samples", 10}, {"metrics", {{"loss", 0.5}, {"auc", "nan"}}}});
  v1::JobReport report;
  while (report.evaluations_size() == 0) report = job.member.worker.worker().Report()[0];
  EXPECT_EQ(report.evaluations(0).step(), 2);
  EXPECT_EQ(report.evaluations(0).loss_sum(), 5);
  EXPECT_EQ(report.evaluations(0).metric_sums().at("loss"), 5);

  v1::Directive acknowledge = job.member.worker.Directive();
  acknowledge.mutable_acknowledge()->set_evaluations_before(3);
  v1::EvaluationResult& result = *acknowledge.mutable_acknowledge()->mutable_evaluation();
  result.set_step(1);  // no evaluation of this program
  job.member.worker.worker().Handle(acknowledge);
  result.set_step(2);
  result.set_samples(20);
  (*result.mutable_metrics())["loss"] = 0.75;
  job.member.worker.worker().Handle(acknowledge);
  job.member.worker.worker().Handle(acknowledge);  // the coordinator repeats it
  const json told = job.program->Await(ProgramMessageKind::kResult);
  EXPECT_EQ(told, json({{"step", 2}, {"samples", 20}, {"metrics", {{"loss", 0.75}}}}));
  EXPECT_EQ(job.program->Next(job.program->Finished(1))["step"], 3);
  EXPECT_EQ(job.ps.parameter(kW), job.values[kW]) << "no gradient, no update";
}

TEST(ExternalLoopTest, DirectivesReachAJobThatWaitsForAProgram) {
  InProcessNetwork network;
  FakePs ps(network, ProgramJob(/*workers=*/1));
  {
    Member halted(network, ps);
    halted.worker.Prepare();
    halted.worker.Await([](const v1::JobReport& report) { return report.has_program_wait(); });
    halted.worker.Halt();
    halted.worker.Await(v1::MEMBER_HALTED);
  }
  {
    Member paused(network, ps);
    paused.worker.Prepare();
    paused.worker.Await([](const v1::JobReport& report) { return report.has_program_wait(); });
    paused.worker.Pause();
    paused.worker.Await(v1::MEMBER_PAUSED);
    paused.worker.Release();
    paused.worker.AwaitFree();
  }
  Member released(network, ps);
  FakeProgram program(released.port->path());
  released.worker.Prepare();
  program.Join();
  released.worker.Release();
  released.worker.AwaitFree();
  program.Send(ProgramMessageKind::kNext, {{"finished", nullptr}});
  EXPECT_EQ(program.Await(ProgramMessageKind::kEnd)["reason"], "cancelled");
}

TEST(ExternalLoopTest, ALostPsIsNoticedWhileTheProgramComputes) {
  Running job(3);
  job.ps.shard(1).Stop();
  const v1::JobReport failed = job.member.worker.Await(v1::MEMBER_FAILED);
  EXPECT_EQ(failed.error().reason(), "PS_UNREACHABLE");
  EXPECT_EQ(failed.error().culprit(), "ps-1");
}

// The program computes the last step of its job, and sends no NEXT after it.
struct LastStep {
  LastStep() : ps(network, ProgramJob(/*workers=*/1)), member(network, ps) {
    member.worker.Prepare();
    program.emplace(member.port->path());
    program->Attach(/*samples=*/0);
    EXPECT_EQ(member.worker.Await(v1::MEMBER_PREPARED).dataset().samples(), kEndlessSamples);
    member.worker.Start(/*total_steps=*/1);
    program->Next();
    program->ComputeLine();
    program->Announce({{.parameter = kB}, {.parameter = kW}});
    Running::AwaitSteps(ps, 1);
  }
  InProcessNetwork network;
  FakePs ps;
  Member member;
  std::optional<FakeProgram> program;
};

TEST(ExternalLoopTest, TheJobEndsWithTheProgramThatSendsNoLastNext) {
  LastStep job;
  job.program->Die();
  const v1::JobReport done = job.member.worker.Await(v1::MEMBER_DONE);
  ASSERT_EQ(done.steps_size(), 1);
  EXPECT_TRUE(done.steps(0).has_no_loss());
}

TEST(ExternalLoopTest, TheProgramMayEvaluateAfterTheLastStep) {
  LastStep job;
  job.program->Send(ProgramMessageKind::kEvaluation,
                    {{"step", 0}, {"samples", 10}, {"metrics", {{"loss", 0.5}}}});
  const v1::JobReport report = job.member.worker.Await(
      [](const v1::JobReport& report) { return report.evaluations_size() == 1; });
  EXPECT_EQ(report.state(), v1::MEMBER_RUNNING);
  EXPECT_EQ(job.program->Next(job.program->Finished(0.5))["reason"], "done");
  EXPECT_EQ(job.member.worker.Await(v1::MEMBER_DONE).steps(0).loss_share(), 0.5);
}

TEST(ExternalLoopTest, APauseEndsTheWaitForTheLastNext) {
  LastStep job;
  job.member.worker.Pause();
  EXPECT_TRUE(job.member.worker.Await(v1::MEMBER_DONE).steps(0).has_no_loss());
  EXPECT_EQ(job.program->Next()["reason"], "done");
}

TEST(ExternalLoopTest, AProgramThatBreaksTheRulesIsRefusedAndTheJobWaitsForAnother) {
  Running job(1);
  const int64_t attempt = job.program->begin()["attempt"];
  using Break = std::function<void(FakeProgram&)>;
  const std::vector<std::pair<Break, std::string>> cases = {
      {[](auto& program) {
         program.Send(ProgramMessageKind::kNext, {{"finished", nullptr}});
       },
       "NEXT after the gradients of 0 of 2"},
      {[](auto& program) {
         program.Announce({{.parameter = kB}, {.parameter = kB}});
       },
       "announced twice"},
      {[](auto& program) { program.Announce({{.parameter = kFrozen}}); }, "is frozen"},
      {[](auto& program) { program.Announce({{.parameter = 3}}); }, "does not exist"},
      {[&](auto& program) { program.Announce(attempt + 100, 1, {{.parameter = kB}}); },
       "the last one is"},
      {[](auto& program) {
         program.Send(ProgramMessageKind::kData, {{"samples", 3}});
       },
       "a second DATA"},
  };
  const int64_t pushes = Running::pushes(job.ps);
  for (const auto& [act, why] : cases) {
    act(*job.program);
    const json refused = job.program->Await(ProgramMessageKind::kRefused);
    EXPECT_THAT(refused["message"].get<std::string>(), HasSubstr(why));
    job.program = std::make_unique<FakeProgram>(job.member.port->path());
    job.program->Attach();
    EXPECT_EQ(job.program->Next()["step"], 1);
    EXPECT_EQ(Running::pushes(job.ps), pushes) << "nothing of the faulty messages counts";
  }
  job.program->Announce(job.program->begin()["attempt"], 1, {{.parameter = kB}});
  job.program->Announce(job.program->begin()["attempt"], 2, {{.parameter = kW}});
  const json refused = job.program->Await(ProgramMessageKind::kRefused);
  EXPECT_THAT(refused["message"].get<std::string>(), HasSubstr("in a step of weight 1"));
}

TEST(ExternalLoopTest, AWorkerThatWasOvertakenContinuesWithTheOthers) {
  FakePs::Options options = ProgramJob(/*workers=*/2);
  options.spec.mutable_sync()->set_backup_workers(1);
  InProcessNetwork network;
  FakePs ps(network, options);
  Member member(network, ps);
  FakeProgram program(member.port->path());
  member.worker.Prepare();
  program.Attach();
  member.worker.Await(v1::MEMBER_PREPARED);
  member.worker.Start(/*total_steps=*/1000);
  EXPECT_EQ(program.Next()["step"], 0);
  for (int i = 0; i < 2; ++i) ps.shard(i).Overtake(5);
  program.ComputeLine();
  program.Announce({{.parameter = kB}, {.parameter = kW}});
  EXPECT_EQ(program.Next(program.Finished(0.5))["step"], 5);
  EXPECT_EQ(program.values(kW)[0], ps.parameter(kW)[0]);
  EXPECT_EQ(program.values(kB)[0], ps.parameter(kB)[0]);
  const v1::JobReport report = member.worker.worker().Report()[0];
  ASSERT_EQ(report.steps_size(), 5);
  EXPECT_EQ(report.steps(0).loss_share(), 0.25);
  for (int s = 1; s < 5; ++s) EXPECT_TRUE(report.steps(s).missed());
}

TEST(ExternalLoopTest, AWorkerWithoutASocketRefusesTheJob) {
  InProcessNetwork network;
  FakePs ps(network, ProgramJob(/*workers=*/1));
  Driven worker(network, ps.plan());
  worker.Prepare();
  EXPECT_EQ(worker.Await(v1::MEMBER_FAILED).error().reason(), "NO_PROGRAM_SOCKET");
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

TEST(ExternalLoopTest, StartsTheProgramOfTheJobAndLetsItEnd) {
  std::string folder = testing::TempDir() + "/program-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  InProcessNetwork network;
  FakePs::Options options = ProgramJob(/*workers=*/1);
  v1::ProgramSpec& spec = *options.spec.mutable_program();
  (*spec.mutable_environment())["DIR"] = folder;
  for (const char* word :
       {"sh", "-c",
        "echo $MUSTER_PROGRAM_SOCKET >$DIR/socket; until [ -e $DIR/end ]; do sleep 0.01; done; "
        "echo ended >$DIR/ended"}) {
    spec.add_command(word);
  }
  FakePs ps(network, options);
  Member member(network, ps);
  member.worker.Prepare();

  while (ReadAll(folder + "/socket") != member.port->path() + "\n") {
  }
  FakeProgram program(member.port->path());  // stands for the script
  program.Attach();
  member.worker.Await(v1::MEMBER_PREPARED);
  member.worker.Start(/*total_steps=*/5);
  EXPECT_EQ(program.TrainLine()["reason"], "done");
  std::ofstream(folder + "/end") << "END";
  member.worker.Await(v1::MEMBER_DONE);
  member.worker.Release();
  member.worker.AwaitFree();

  EXPECT_EQ(ReadAll(folder + "/ended"), "ended\n");
}

TEST(ExternalLoopTest, AProgramThatFailsFailsTheJob) {
  InProcessNetwork network;
  FakePs::Options options = ProgramJob(/*workers=*/1);
  for (const char* word : {"sh", "-c", "echo the cause >&2; exit 3"}) {
    options.spec.mutable_program()->add_command(word);
  }
  FakePs ps(network, options);
  Member member(network, ps);
  member.worker.Prepare();

  const v1::MemberError error = member.worker.Await(v1::MEMBER_FAILED).error();

  EXPECT_EQ(error.reason(), "PROGRAM_FAILED");
  EXPECT_THAT(error.message(),
              HasSubstr("exit code 3; the end of its standard error:\\nthe cause"));
}

}  // namespace
}  // namespace muster::external_loop_test
