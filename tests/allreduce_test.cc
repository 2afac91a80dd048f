// Jobs without parameter servers: workers own the parameters and sum gradients around a ring.
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "lib/status/grpc_status.h"
#include "tests/member_exit.h"
#include "tests/metrics_page.h"
#include "tests/training_cluster.h"

namespace muster::allreduce_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

constexpr int kSteps = 120;
constexpr char kAllreduce[] = "allreduce";
constexpr char kBsp[] = "bsp";

struct Gpt {
  std::string mode = kAllreduce;
  int workers = 2;
  int ps = 0;
  int steps = kSteps;
  std::string checkpoint = "{}";
  std::string optimizer = "{adamw: {learning_rate: 3e-3, weight_decay: 0.1}}";
  std::string training;  // more fields of "training", with a comma in front

  std::string yaml() const {
    return absl::Substitute(
        R"(
name: ring
model: {zoo: {name: gpt, args: {layers: 2, heads: 2, channels: 48, context: 32}}}
data: {text: {path: examples/data/licences, holdout: 0.1}, batch_size: 12, seed: 1}
training: {steps: $0, optimizer: $1, seed: 9$2}
sync: {mode: $3}
resources: {workers: {min: $4, max: $4}$5}
checkpoint: $6
chunk_bytes: 16384
)",
        steps, optimizer, training, mode, workers, ps > 0 ? absl::StrCat(", ps: ", ps) : "",
        checkpoint);
  }
};

class AllreduceTest : public ::testing::Test {
 protected:
  // All jobs of this file that kill no process share one set of processes.
  static void SetUpTestSuite() {
    cluster_ = new TrainingCluster({.ps = 2, .workers = 3, .ps_threads = 1});
  }
  static void TearDownTestSuite() { delete cluster_; }

  static std::vector<double> Losses(const std::string& job) {
    std::vector<double> losses;
    for (const StepMetrics& step : cluster_->Metrics(job)) losses.push_back(step.loss);
    return losses;
  }

  // Expects losses that are equal before the step `equal_before` and close after it. Another order
  // of sums rounds differently, and training amplifies the difference.
  static void ExpectFollows(const std::vector<double>& losses, const std::vector<double>& expected,
                            size_t equal_before = 0) {
    ASSERT_EQ(losses.size(), expected.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      const double tolerance = i < equal_before ? 0 : i < equal_before + 5 ? 1e-4 : 0.05;
      ASSERT_NEAR(losses[i], expected[i], tolerance) << i;
    }
  }

  static TrainingCluster* cluster_;
};
TrainingCluster* AllreduceTest::cluster_ = nullptr;

TEST_F(AllreduceTest, AJobRunsWithoutPsAndFollowsTheOneWithPs) {
  const std::string with_ps = cluster_->Run(Gpt{.mode = kBsp, .workers = 2, .ps = 2}.yaml());
  for (int workers : {1, 2, 3}) {
    const std::string job = cluster_->Run(Gpt{.workers = workers}.yaml());

    const v1::Job done = cluster_->Get(job);
    EXPECT_EQ(done.workers_size(), workers);
    EXPECT_THAT(done.ps(), IsEmpty());
    ExpectFollows(Losses(job), Losses(with_ps));
  }
}

TEST_F(AllreduceTest, ARunRepeatsToTheBit) {
  std::set<std::map<std::string, std::string>> hashes;
  std::set<std::vector<double>> losses;
  for (int repeat = 0; repeat < 2; ++repeat) {
    const std::string job = cluster_->Run(Gpt{.workers = 3}.yaml());
    hashes.insert(cluster_->Hashes(job, kSteps));
    losses.insert(Losses(job));
  }
  EXPECT_EQ(hashes.size(), 1);
  EXPECT_EQ(losses.size(), 1);
  EXPECT_EQ(losses.begin()->size(), kSteps);
}

TEST_F(AllreduceTest, ACheckpointGoesOnWithOtherWorkersAndWithPsAndBack) {
  const std::string origin =
      cluster_->Run(Gpt{.workers = 2, .checkpoint = "{every_steps: 60, keep_last: 0}"}.yaml());
  const std::string from = absl::StrCat("{resume_from: \"", origin, "@60\"}");

  const std::string same = cluster_->Run(Gpt{.workers = 2, .checkpoint = from}.yaml());
  EXPECT_EQ(cluster_->Parameters(same, kSteps), cluster_->Parameters(origin, kSteps));
  const auto losses = Losses(origin);
  const std::vector<double> rest(losses.begin() + 60, losses.end());
  for (int workers : {1, 3}) {
    const std::string other = cluster_->Run(Gpt{.workers = workers, .checkpoint = from}.yaml());
    ExpectFollows(Losses(other), rest);
  }
  const std::string with_ps = cluster_->Run(
      Gpt{.mode = kBsp,
          .workers = 2,
          .ps = 2,
          .checkpoint = "{resume_from: \"" + origin + "@60\", every_steps: 90, keep_last: 0}"}
          .yaml());
  ExpectFollows(Losses(with_ps), rest);

  const std::string back = absl::StrCat("{resume_from: \"", with_ps, "@90\"}");
  const std::string again = cluster_->Run(Gpt{.workers = 3, .checkpoint = back}.yaml());
  ExpectFollows(Losses(again), {losses.begin() + 90, losses.end()});
}

TEST_F(AllreduceTest, SuspendedAndResumedItGoesOnWhereItStood) {
  const int kLong = Lengthened(400);
  const std::string undisturbed = cluster_->Run(Gpt{.workers = 2, .steps = kLong}.yaml());
  const std::string job = cluster_->Submit(Gpt{.workers = 2, .steps = kLong}.yaml());
  AwaitMoreSteps(*cluster_, job, 20);
  cluster_->Suspend(job);
  const int64_t stopped_at = cluster_->AwaitState(job, v1::SUSPENDED).progress().step();
  ASSERT_LT(stopped_at, kLong) << "suspended too late for this test to show anything";
  ASSERT_GE(stopped_at, 20) << "suspended too early";

  cluster_->Resume(job);
  cluster_->AwaitState(job, v1::SUCCEEDED);

  EXPECT_EQ(cluster_->Metrics(job), cluster_->Metrics(undisturbed));
  EXPECT_EQ(cluster_->Parameters(job, kLong), cluster_->Parameters(undisturbed, kLong));
}

TEST_F(AllreduceTest, SavingOnDemandDoesNotDisturbTheRun) {
  const int kLong = Lengthened(400);
  const std::string undisturbed = cluster_->Run(Gpt{.workers = 3, .steps = kLong}.yaml());
  const std::string job = cluster_->Submit(Gpt{.workers = 3, .steps = kLong}.yaml());
  AwaitMoreSteps(*cluster_, job, 20);
  grpc::ClientContext context;
  v1::SaveCheckpointRequest request;
  v1::Checkpoint checkpoint;
  request.set_job(job);

  const absl::Status saved =
      FromGrpc(cluster_->checkpoints().SaveCheckpoint(&context, request, &checkpoint));

  ASSERT_TRUE(saved.ok()) << saved;
  EXPECT_GT(checkpoint.step(), 0);
  EXPECT_FALSE(cluster_->Hashes(job, checkpoint.step()).empty());
  cluster_->AwaitState(job, v1::SUCCEEDED);
  EXPECT_EQ(cluster_->Metrics(job), cluster_->Metrics(undisturbed));
}

// Each variant needs the norm of the whole gradient or of whole tensors, across all shards.
TEST_F(AllreduceTest, JudgedStepsFollowThoseWithPs) {
  const std::string sgd = "{sgd: {learning_rate: 0.1, momentum: 0.9}}";
  for (const Gpt& variant : {Gpt{.optimizer = sgd, .training = ", clip: {global_norm: 0.5}"},
                             Gpt{.optimizer = sgd, .training = ", precision: fp16"},
                             Gpt{.optimizer = "{lamb: {learning_rate: 0.01}}"},
                             Gpt{.optimizer = "{lars: {learning_rate: 0.1, momentum: 0.9}}"}}) {
    SCOPED_TRACE(variant.yaml());
    Gpt ring = variant, ps = variant;
    ring.steps = ps.steps = 30;
    ring.workers = ps.workers = 3;
    ps.mode = kBsp;
    ps.ps = 2;
    ExpectFollows(Losses(cluster_->Run(ring.yaml())), Losses(cluster_->Run(ps.yaml())));
  }
}

TEST_F(AllreduceTest, AskingForPsIsRefused) {
  const absl::Status refused = cluster_->SubmitError(Gpt{.ps = 2}.yaml());
  EXPECT_THAT(std::string(refused.message()), HasSubstr("resources.ps"));
}

TEST_F(AllreduceTest, LeNetReaches97PercentOnMnist) {
  for (int workers : {2, 3}) {
    const std::string job = cluster_->Submit(absl::Substitute(
        R"(
name: mnist-ring
model: {zoo: {name: lenet, args: {classes: 10}}}
data:
  idx: {images: examples/data/mnist/t10k-images-idx3-ubyte.gz, labels: examples/data/mnist/t10k-labels-idx1-ubyte.gz, holdout: 0.15}
  batch_size: 64
  seed: 1
training:
  epochs: 5
  optimizer: {adam: {learning_rate: 2e-3}}
  schedule: {warmup_steps: 50, cosine: {final_ratio: 0.05}}
  evaluate_every_steps: 132
  seed: 1
sync: {mode: allreduce}
resources: {workers: {min: $0, max: $0}}
)",
        workers));

    const v1::Job done = cluster_->AwaitState(job, v1::SUCCEEDED, absl::Minutes(5));

    EXPECT_GE(done.progress().evaluation_accuracy(), 0.97) << workers << " workers";
  }
}

// In direct mode a member writes its shards itself, to its own path of the folder of all jobs
// (--checkpoint_root). If it cannot, it sends the bytes to the coordinator. The job then gets an
// event and loses no checkpoint.
TEST(DirectCheckpointsTest, HoldTheSameBytesWithAndWithoutTheVolume) {
  namespace fs = std::filesystem;
  const std::string volume = ::testing::TempDir() + "/volume",
                    flag = absl::StrCat("--checkpoint_root=", volume);
  fs::remove(volume);
  TrainingCluster cluster(
      {.ps = 2, .workers = 2, .ps_threads = 1, .ps_flags = {flag}, .worker_flags = {flag}});
  fs::create_directory_symlink(cluster.state_dir() + "/jobs", volume);
  const auto events = [&](const std::string& job) {
    std::vector<std::string> messages;
    grpc::ClientContext context;
    v1::WatchJobRequest request;
    request.set_name(job);
    auto stream = cluster.jobs().WatchJob(&context, request);
    for (v1::WatchJobResponse response; stream->Read(&response);) {
      for (const v1::JobEvent& event : response.events()) {
        if (event.reason() == "SHARD_SENT") messages.push_back(event.message());
      }
    }
    return messages;
  };
  for (Gpt shape : {Gpt{.mode = kBsp, .ps = 2}, Gpt{}}) {
    SCOPED_TRACE(shape.mode);
    shape.steps = 40;
    shape.checkpoint = "{every_steps: 20, keep_last: 0}";
    const std::string sent = cluster.Run(shape.yaml());
    shape.checkpoint = "{every_steps: 20, keep_last: 0, mode: direct}";

    const std::string written = cluster.Run(shape.yaml());
    EXPECT_THAT(events(written), IsEmpty());
    fs::remove(volume);
    const std::string without = cluster.Run(shape.yaml());
    fs::create_directory_symlink(cluster.state_dir() + "/jobs", volume);

    for (const int64_t step : {20, 40}) {
      EXPECT_EQ(cluster.Hashes(written, step), cluster.Hashes(sent, step)) << step;
      EXPECT_EQ(cluster.Hashes(without, step), cluster.Hashes(sent, step)) << step;
    }
    const std::string role = shape.ps > 0 ? "ps-" : "worker-";
    EXPECT_THAT(events(without),
                UnorderedElementsAre(AllOf(StartsWith(role + "0 sends"), HasSubstr(volume + ":")),
                                     AllOf(StartsWith(role + "1 sends"), HasSubstr(volume + ":"))));
  }
}

// The shard of the dead worker is lost with it, so the job goes back to its checkpoint.
TEST(AllreduceFailureTest, AKilledWorkerIsNamedWithinTenSecondsAndReplaced) {
  TrainingCluster cluster({.ps = 0, .workers = 3});
  const Gpt shape{.workers = 3, .steps = 120, .checkpoint = "{every_steps: 20, keep_last: 0}"};
  const std::string undisturbed = cluster.Run(shape.yaml());
  const std::string job = cluster.Submit(shape.yaml());
  AwaitMoreSteps(cluster, job, 50);

  const absl::Time killed = absl::Now();
  ASSERT_TRUE(cluster.members().Kill("worker-1", SIGKILL).ok());
  const v1::Job recovering = cluster.Await(
      job, [](const v1::Job& seen) { return seen.recovery().count() > 0; }, absl::Seconds(30));

  EXPECT_LE(absl::Now() - killed, absl::Seconds(10));
  EXPECT_THAT(recovering.message(), HasSubstr("worker-1"));
  EXPECT_THAT(recovering.message(), HasSubstr("step "));
  ASSERT_TRUE(cluster.members().Restart("worker-1").ok());
  cluster.AwaitState(job, v1::SUCCEEDED);
  EXPECT_EQ(cluster.Parameters(job, 120), cluster.Parameters(undisturbed, 120));
}

// The job saves a checkpoint before the worker leaves, so no step is computed again.
TEST(AllreduceFailureTest, AWorkerThatIsToldToStopIsLetGoWithoutLosingAStep) {
  TrainingCluster cluster({.ps = 0, .workers = 2});
  // The checkpoint is planned for the step that comes 1.5 s later. If the job ended before it, the
  // final checkpoint would serve, and the worker would stay.
  const Gpt shape{.workers = 2, .steps = 2000, .checkpoint = "{every: 0s, keep_last: 0}"};
  const std::string undisturbed = cluster.Run(shape.yaml());
  const std::string job = cluster.Submit(shape.yaml());
  AwaitMoreSteps(cluster, job, 60);

  ExpectOrderlyExit(cluster, "worker-1");
  const v1::Job left = cluster.AwaitState(job, v1::RECOVERING, absl::Seconds(10));
  EXPECT_GE(CheckpointStepOf(left), 60);
  ASSERT_TRUE(cluster.members().Restart("worker-1").ok());

  EXPECT_EQ(cluster.AwaitState(job, v1::SUCCEEDED).recovery().count(), 0);
  EXPECT_EQ(cluster.Metrics(job), cluster.Metrics(undisturbed));
  EXPECT_EQ(cluster.Parameters(job, shape.steps), cluster.Parameters(undisturbed, shape.steps));
}

TEST(AllreduceFailureTest, TrainingGoesOnWhileTheCoordinatorRestarts) {
  TrainingCluster cluster({.ps = 0, .workers = 2});
  const Gpt shape{.workers = 2, .steps = 400, .checkpoint = "{every_steps: 100, keep_last: 0}"};
  const std::string undisturbed = cluster.Run(shape.yaml());
  const std::string job = cluster.Submit(shape.yaml());
  AwaitMoreSteps(cluster, job, 60);

  ASSERT_TRUE(cluster.members().Kill("coordinator", SIGKILL).ok());
  ASSERT_TRUE(cluster.members().Restart("coordinator").ok());
  cluster.AwaitState(job, v1::SUCCEEDED);

  EXPECT_EQ(cluster.Metrics(job), cluster.Metrics(undisturbed));
  EXPECT_EQ(cluster.Parameters(job, shape.steps), cluster.Parameters(undisturbed, shape.steps));
}

}  // namespace
}  // namespace muster::allreduce_test
