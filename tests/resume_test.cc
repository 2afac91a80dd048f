// Suspend, resume and resume_from continue exactly where a run stopped, with other numbers of
// members.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/substitute.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "lib/status/grpc_status.h"
#include "tests/metrics_page.h"
#include "tests/training_cluster.h"

namespace muster::resume_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

const int kSteps = Lengthened(130);

std::string Job(int workers, int ps, const std::string& checkpoint = "{}") {
  return absl::Substitute(R"(
name: resume
model: {zoo: {name: gpt, args: {layers: 3, heads: 4, channels: 96, context: 48}}}
data: {text: {path: examples/data/licences}, batch_size: 12, seed: 1}
training:
  steps: $0
  optimizer: {adamw: {learning_rate: 3e-3, weight_decay: 0.1}}
  schedule: {warmup_steps: 20, cosine: {final_ratio: 0.1}}
  seed: 9
resources: {workers: {min: $1, max: $1}, ps: $2}
checkpoint: $3
chunk_bytes: 65536
)",
                          kSteps, workers, ps, checkpoint);
}

// A job that counts how often each sample is trained. Each sample is its own feature and has its
// own weight. Each training of the sample adds a 256th of the difference to kTarget.
namespace counting {

constexpr int kSamples = 512;
constexpr int kBatch = 8;
const int kEpochs = Lengthened(160);  // of some ten milliseconds each
constexpr int kStepsPerEpoch = kSamples / kBatch;
const int kSteps = kEpochs * kStepsPerEpoch;
constexpr float kTarget = 1024;

void WriteNpy(const std::string& path, int columns, const std::vector<float>& values) {
  std::string header = absl::StrFormat(
      "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }", kSamples, columns);
  header.resize(128 - 10 - 1, ' ');
  header += '\n';
  std::ofstream file(path, std::ios::binary);
  file.write("\x93NUMPY\x01\x00\x76\x00", 10) << header;
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
  ASSERT_TRUE(file.good()) << path;
}

std::string Job(int workers, int ps_replication = 1) {
  const std::string input = ::testing::TempDir() + "one_hot.npy",
                    target = ::testing::TempDir() + "targets.npy";
  std::vector<float> one_hot(kSamples * kSamples);
  for (int i = 0; i < kSamples; ++i) one_hot[i * kSamples + i] = 1;
  WriteNpy(input, kSamples, one_hot);
  WriteNpy(target, 1, std::vector<float>(kSamples, kTarget));
  return absl::Substitute(R"(
name: count
model: {zoo: {name: linear, args: {inputs: $0}}}
data: {npy: {inputs: {input: $1, target: $2}}, batch_size: $3, seed: 5}
training:
  epochs: $4
  optimizer: {sgd: {learning_rate: $5}}
  parameter_groups: [{match: ["bias"], frozen: true}]
resources: {workers: {min: $6, max: $6}, ps: 2, ps_replication: $7}
chunk_bytes: 1024
)",
                          kSamples, input, target, kBatch, kEpochs, kBatch / 512.0, workers,
                          ps_replication);
}

// Returns how often each sample was trained, from the parameters after a step.
std::vector<int> TimesTrained(const std::map<std::string, std::vector<float>>& parameters) {
  std::vector<int> times;
  for (const float weight : parameters.at("weight")) {
    const double lacking = (kTarget - weight - parameters.at("bias")[0]) / kTarget;
    times.push_back(static_cast<int>(std::lround(std::log(lacking) / std::log(255.0 / 256))));
  }
  return times;
}

}  // namespace counting

class ResumeTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    cluster_ = new TrainingCluster({.ps = 3, .workers = 3, .ps_threads = 2});
    undisturbed_ = cluster_->Run(Job(2, 2, "{every_steps: 40, keep_last: 0}"));
  }
  static void TearDownTestSuite() { delete cluster_; }

  // Suspends after a few steps. Returns the first step that was not done.
  static int64_t Suspend(const std::string& job, int64_t steps = kSteps) {
    AwaitMoreSteps(*cluster_, job, 20);
    cluster_->Suspend(job);
    const v1::Job suspended = cluster_->AwaitState(job, v1::SUSPENDED);
    EXPECT_LT(suspended.progress().step(), steps)
        << "suspended too late for this test to show anything";
    EXPECT_GE(suspended.progress().step(), 20) << "suspended too early";
    return suspended.progress().step();
  }

  static void Resume(const std::string& job, int workers, int ps) {
    v1::ResourceSpec resources;
    resources.mutable_workers()->set_min(workers);
    resources.mutable_workers()->set_max(workers);
    resources.set_ps(ps);
    cluster_->Resume(job, &resources);
  }

  // Returns the message of a finished job's event, or "" if it has no such event.
  static std::string MessageOfEvent(const std::string& job, const std::string& reason) {
    grpc::ClientContext context;
    v1::WatchJobRequest request;
    request.set_name(job);
    auto stream = cluster_->jobs().WatchJob(&context, request);
    std::string message;
    for (v1::WatchJobResponse response; stream->Read(&response);) {
      for (const v1::JobEvent& event : response.events()) {
        if (event.reason() == reason) message = event.message();
      }
    }
    return message;
  }

  // ---- Helpers for counting::Job, which counts how often each sample was trained.
  // SuspendAndCount(), and the callers of KillAndGoOn(), repeat until the interruption falls inside
  // an epoch.

  static bool IsInMidEpoch(int64_t step) { return step % counting::kStepsPerEpoch != 0; }

  static void SuspendAndCount(const std::string& job) {
    int64_t stopped_at = Suspend(job, counting::kSteps);
    while (!IsInMidEpoch(stopped_at)) {
      cluster_->Resume(job);
      stopped_at = Suspend(job, counting::kSteps);
    }
    const int epoch = static_cast<int>(stopped_at) / counting::kStepsPerEpoch;
    const std::vector<int> times = counting::TimesTrained(cluster_->Parameters(job, stopped_at));
    EXPECT_EQ(std::ranges::count(times, epoch + 1),
              stopped_at % counting::kStepsPerEpoch * counting::kBatch);
    EXPECT_EQ(std::ranges::count(times, epoch) + std::ranges::count(times, epoch + 1),
              counting::kSamples)
        << "in the middle of an epoch, at step " << stopped_at;
  }

  // Kills the member with SIGKILL and restarts it. Returns the step at which the job continues.
  static int64_t KillAndGoOn(const std::string& job, const std::string& member) {
    AwaitMoreSteps(*cluster_, job, 20);
    const int recoveries = cluster_->Get(job).recovery().count();
    EXPECT_TRUE(cluster_->members().Kill(member, SIGKILL).ok());
    EXPECT_TRUE(cluster_->members().Restart(member).ok());
    const v1::Job going_on = cluster_->Await(job, [&](const v1::Job& now) {
      return now.state() == v1::RUNNING && now.recovery().count() > recoveries;
    });
    return going_on.recovery().resumed_step();
  }

  static void AwaitEndAndCount(const std::string& job) {
    cluster_->AwaitState(job, v1::SUCCEEDED);
    EXPECT_THAT(counting::TimesTrained(cluster_->Parameters(job, counting::kSteps)),
                Each(counting::kEpochs));
  }

  static TrainingCluster* cluster_;
  static std::string undisturbed_;
};
TrainingCluster* ResumeTest::cluster_ = nullptr;
std::string ResumeTest::undisturbed_;

TEST_F(ResumeTest, SameWorkersAndOtherPsGiveTheUndisturbedBits) {
  const std::string job = cluster_->Submit(Job(2, 2));
  Suspend(job);
  Resume(job, 2, 3);
  cluster_->AwaitState(job, v1::SUCCEEDED);

  EXPECT_EQ(cluster_->Metrics(job), cluster_->Metrics(undisturbed_));
  EXPECT_EQ(cluster_->Parameters(job, kSteps), cluster_->Parameters(undisturbed_, kSteps));
}

TEST_F(ResumeTest, OtherWorkersFollowTheUndisturbedLosses) {
  const std::string job = cluster_->Submit(Job(2, 2));
  const int64_t stopped_at = Suspend(job);
  Resume(job, 3, 1);
  cluster_->AwaitState(job, v1::SUCCEEDED);

  const auto losses = cluster_->Metrics(job), expected = cluster_->Metrics(undisturbed_);
  ASSERT_EQ(losses.size(), expected.size());
  for (int64_t step = 0; step < kSteps; ++step) {
    ASSERT_EQ(losses[step].step, step);
    if (step < stopped_at) {
      ASSERT_EQ(losses[step].loss, expected[step].loss) << step;
    } else {
      // Three workers split the batch in another way, so sums round differently, and training
      // amplifies the difference.
      const double tolerance = step < stopped_at + 5 ? 1e-4 : 0.05;
      ASSERT_NEAR(losses[step].loss, expected[step].loss, tolerance) << step;
    }
  }
}

TEST_F(ResumeTest, SuspendingTwiceStillGivesTheUndisturbedBits) {
  const std::string job = cluster_->Submit(Job(2, 1));
  const int64_t first = Suspend(job);
  Resume(job, 2, 3);
  EXPECT_GT(Suspend(job), first);
  Resume(job, 2, 2);
  cluster_->AwaitState(job, v1::SUCCEEDED);

  EXPECT_EQ(cluster_->Metrics(job), cluster_->Metrics(undisturbed_));
}

TEST_F(ResumeTest, EverySampleIsTrainedOncePerEpochWhoeverTrainsIt) {
  const std::string job = cluster_->Submit(counting::Job(/*workers=*/3));
  for (const auto& [workers, ps] : std::vector<std::pair<int, int>>{{2, 3}, {1, 1}}) {
    SuspendAndCount(job);
    Resume(job, workers, ps);
  }
  AwaitEndAndCount(job);
}

TEST_F(ResumeTest, EverySampleIsTrainedOncePerEpochWhoeverDies) {
  const std::string job = cluster_->Submit(counting::Job(/*workers=*/3, /*ps_replication=*/2));
  int64_t worker_gone = 0, ps_gone = 0;
  while (!IsInMidEpoch(worker_gone)) {
    worker_gone = KillAndGoOn(job, cluster_->AwaitState(job, v1::RUNNING).workers(1));
  }
  while (!IsInMidEpoch(ps_gone)) ps_gone = KillAndGoOn(job, cluster_->Get(job).ps(0));
  EXPECT_GT(ps_gone, worker_gone) << "its shards went on, there is no checkpoint";
  SuspendAndCount(job);
  cluster_->Resume(job);
  AwaitEndAndCount(job);
  EXPECT_TRUE(cluster_->members().AwaitAttached(absl::Seconds(30)).ok()) << cluster_->Logs();
}

// Flips one bit of the newest checkpoint while the job is suspended.
TEST_F(ResumeTest, FromADamagedCheckpointTheJobFallsBackToTheOneBeforeAndTheBitsStayTheSame) {
  const std::string job = cluster_->Submit(Job(2, 2, "{every_steps: 10, keep_last: 0}"));
  const int64_t stopped_at = Suspend(job);
  ASSERT_EQ(cluster_->Get(job).checkpoint(),
            absl::StrCat("jobs/", job, "/checkpoints/", stopped_at));
  const std::string name =
      absl::StrFormat("/step-%08d/optimizer-00001-of-00001.safetensors", stopped_at);
  const std::string file = cluster_->checkpoint_directory(job) + name;
  {
    std::fstream bytes(file, std::ios::binary | std::ios::in | std::ios::out);
    bytes.seekg(-1, std::ios::end);
    const char last = static_cast<char>(bytes.get());
    bytes.seekp(-1, std::ios::end).put(static_cast<char>(last ^ 1));
    ASSERT_TRUE(bytes.flush().good()) << file;
  }

  Resume(job, 2, 3);
  cluster_->AwaitState(job, v1::SUCCEEDED);

  const int64_t sound = (stopped_at - 1) / 10 * 10;
  const std::string event = MessageOfEvent(job, "CHECKPOINT_DAMAGED");
  EXPECT_THAT(event, HasSubstr(name));
  EXPECT_THAT(event, HasSubstr(absl::StrCat(job, "@", sound, " is used instead")));
  EXPECT_EQ(cluster_->Metrics(job), cluster_->Metrics(undisturbed_));
  EXPECT_EQ(cluster_->Hashes(job, kSteps), cluster_->Hashes(undisturbed_, kSteps));
}

TEST_F(ResumeTest, ANewJobContinuesFromAnotherJobsCheckpoint) {
  for (const auto& [from, step] : std::map<std::string, int64_t>{
           {absl::StrCat(undisturbed_, "@80"), 80},
           {cluster_->checkpoint_directory(undisturbed_) + "/step-00000120", 120}}) {
    const std::string job = cluster_->Run(Job(2, 3, absl::StrCat("{resume_from: \"", from, "\"}")));

    EXPECT_EQ(cluster_->Parameters(job, kSteps), cluster_->Parameters(undisturbed_, kSteps))
        << from;
    const auto metrics = cluster_->Metrics(job), expected = cluster_->Metrics(undisturbed_);
    ASSERT_FALSE(metrics.empty());
    EXPECT_EQ(metrics.front().step, step);
    EXPECT_EQ(metrics.back(), expected.back());
  }
}

TEST_F(ResumeTest, SavingOnDemandDoesNotDisturbTheRun) {
  const std::string job = cluster_->Submit(Job(2, 2));
  AwaitMoreSteps(*cluster_, job, 20);
  grpc::ClientContext context;
  v1::SaveCheckpointRequest request;
  v1::Checkpoint checkpoint;
  request.set_job(job);

  const absl::Status status =
      FromGrpc(cluster_->checkpoints().SaveCheckpoint(&context, request, &checkpoint));

  ASSERT_TRUE(status.ok()) << status;
  EXPECT_GT(checkpoint.step(), 0);
  EXPECT_FALSE(cluster_->Hashes(job, checkpoint.step()).empty());
  cluster_->AwaitState(job, v1::SUCCEEDED);
  EXPECT_EQ(cluster_->Metrics(job), cluster_->Metrics(undisturbed_));
}

}  // namespace
}  // namespace muster::resume_test
