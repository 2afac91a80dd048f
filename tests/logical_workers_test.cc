// A job with logical workers trains to the same bits on any number of workers, through kills and
// changes of the number.
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "tests/training_cluster.h"

namespace muster::logical_workers_test {
namespace {

using HashesByFile = std::map<std::string, std::string>;

constexpr int kWorkers = 8;
constexpr int kPs = 3;
// Jobs that are disturbed are compared after kSteps. Strikes are kStepsApart.
constexpr int64_t kStepsApart = 150;
constexpr int64_t kSteps = 8 * kStepsApart;

struct Shape {
  int min = 1;
  int max = kWorkers;
  int ps = 2;
  int64_t chunk_bytes = 4096;
  int steps = 8;
  int logical = 8;
};

// A model, its data and its training.
struct Kind {
  std::string name;
  std::string model;
  std::string data;
  std::string training;
  int replication = 1;
};

std::vector<Kind> Kinds() {
  const std::string text = "text: {path: examples/data/licences, holdout: 0.02}";
  const std::string gpt =
      "gpt, args: {layers: 1, heads: 2, channels: 32, context: 16, dropout: 0.1, tied: true}";
  const std::string images = "synthetic: {samples: 200, holdout: 0.1}";
  const std::string resnet = "resnet50, args: {image: 32, classes: 4, blocks: \"1,1\", width: 4}";
  const std::string lstm = "lstm_lm, args: {layers: 1, channels: 16, context: 8, vocabulary: 256}";
  return {
      {"gpt-fp32-clip", gpt, text,
       "optimizer: {adamw: {learning_rate: 1e-3}}, clip: {global_norm: 0.5}"},
      {"gpt-bf16-replicated", gpt, text,
       "optimizer: {adam: {learning_rate: 1e-3}}, precision: bf16", /*replication=*/2},
      // The first steps overflow.
      {"gpt-fp16", gpt, text,
       "optimizer: {sgd: {learning_rate: 0.1, momentum: 0.9}}, precision: fp16, "
       "loss_scale: {initial: 16777216}"},
      {"resnet-fp32", resnet, images, "optimizer: {sgd: {learning_rate: 0.05, momentum: 0.9}}"},
      {"lstm-lamb", lstm, text, "optimizer: {lamb: {learning_rate: 0.01}}"},
  };
}

std::string JobOf(const Kind& kind, const Shape& shape) {
  return absl::Substitute(
      R"(
name: logical
model: {zoo: {name: $0}}
data: {$1, batch_size: 19, seed: 3}
training: {steps: $2, $3, seed: 5}
resources: {workers: {min: $4, max: $5, logical: $6}, ps: $7, ps_replication: $8}
chunk_bytes: $9
)",
      kind.model, kind.data, shape.steps, kind.training, shape.min, shape.max, shape.logical,
      shape.ps, kind.replication, shape.chunk_bytes);
}

class LogicalWorkersTest : public testing::Test {
 protected:
  // All jobs of this file share one set of processes.
  static void SetUpTestSuite() {
    cluster_ = new TrainingCluster({.ps = kPs, .workers = kWorkers, .ps_threads = 1});
  }
  static void TearDownTestSuite() { delete cluster_; }

  void TearDown() override { EXPECT_TRUE(cluster_->members().Heal().ok()); }

  // Suspends the job, and resumes it on `min` to `max` workers.
  static void Scale(const std::string& job, int min, int max) {
    cluster_->Suspend(job);
    v1::ResourceSpec resources = cluster_->AwaitState(job, v1::SUSPENDED).spec().resources();
    resources.mutable_workers()->set_min(min);
    resources.mutable_workers()->set_max(max);
    cluster_->Resume(job, &resources);
  }

  // Submits a job that does not end before End().
  static std::string Begin(const Kind& kind, int logical) {
    return cluster_->Submit(absl::StrCat(
        JobOf(kind, {.steps = 1'000'000, .logical = logical}), "checkpoint: {every_steps: ",
        kStepsApart, ", every: 0s, keep_last: 0}\nrestart: {max_restarts: 1000}\n"));
  }

  // Awaits a checkpoint of at least `step` and suspends the job. Returns the hashes of the
  // checkpoints by step. A member that is lost may end a checkpoint that is being written, and so
  // leave a gap.
  static std::map<int64_t, HashesByFile> End(const std::string& job, int64_t step) {
    cluster_->Await(job, [=](const v1::Job& now) {
      return CheckpointStepOf(now) >= step && CheckpointStepOf(now) % kStepsApart == 0;
    });
    cluster_->Suspend(job);
    cluster_->AwaitState(job, v1::SUSPENDED);
    std::map<int64_t, HashesByFile> hashes;
    const auto steps = ListCheckpointSteps(cluster_->checkpoint_directory(job));
    EXPECT_TRUE(steps.ok()) << steps.status();
    for (const int64_t committed : *steps) {
      if (committed % kStepsApart == 0) hashes[committed] = cluster_->Hashes(job, committed);
    }
    return hashes;
  }

  // Trains a job that is left alone, longer than any disturbed job.
  static std::map<int64_t, HashesByFile> Calm(const Kind& kind, int logical) {
    return End(Begin(kind, logical), 2 * kSteps);
  }

  // Returns the number of checkpoints in which the jobs differ. At least one is from after kSteps.
  static int CountDifferences(const std::map<int64_t, HashesByFile>& job,
                              const std::map<int64_t, HashesByFile>& calm) {
    int differences = 0;
    bool is_compared = false;
    for (const auto& [step, hashes] : job) {
      if (!calm.contains(step)) continue;
      differences += hashes != calm.at(step) ? 1 : 0;
      is_compared |= step >= kSteps;
    }
    EXPECT_TRUE(is_compared) << "the calm job ended too soon";
    return differences;
  }

  static TrainingCluster* cluster_;
};

TrainingCluster* LogicalWorkersTest::cluster_ = nullptr;

TEST_F(LogicalWorkersTest, AnyNumberOfWorkersAndPsAndAnyChunkSizeGiveTheSameBits) {
  for (const Kind& kind : Kinds()) {
    std::set<std::map<std::string, std::vector<float>>> parameters;
    std::set<std::vector<double>> losses;
    int run = 0;
    for (const int workers : {8, 1, 2, 3, 4, 5}) {
      const int ps = std::max(kind.replication, 1 + run % kPs);
      const int64_t chunk_bytes = std::vector<int64_t>{1024, 4160, 1 << 20}[run / 2];
      ++run;
      const std::string job = cluster_->Run(
          JobOf(kind, {.min = workers, .max = workers, .ps = ps, .chunk_bytes = chunk_bytes}));
      ASSERT_EQ(cluster_->Get(job).workers_size(), workers);
      std::vector<double> sequence;
      bool skipped = false;
      for (const StepMetrics& step : cluster_->Metrics(job)) {
        sequence.push_back(step.loss);
        skipped |= step.skipped;
      }
      EXPECT_EQ(skipped, kind.name == "gpt-fp16");
      losses.insert(sequence);
      parameters.insert(cluster_->Parameters(job, 8));
      EXPECT_EQ(parameters.size(), 1u) << kind.name << ": other bits on " << workers << " workers, "
                                       << ps << " ps, chunks of " << chunk_bytes << " bytes";
    }
    EXPECT_EQ(losses.size(), 1u) << kind.name;
  }
}

TEST_F(LogicalWorkersTest, AJobThatIsScaledKeepsItsBitsOnlyWithLogicalWorkers) {
  const Kind kind = Kinds()[0];
  const auto run = [&](int logical) {
    const std::string job = Begin(kind, logical);
    int64_t step = 0;
    for (const int workers : {3, 1, 5, 2, 8, 4}) {
      step += kStepsApart;
      cluster_->AwaitStep(job, step);
      Scale(job, workers, workers);
    }
    return CountDifferences(End(job, kSteps), Calm(kind, logical));
  };
  EXPECT_EQ(run(8), 0);
  EXPECT_GT(run(0), 0) << "the test cannot fail";
}

int FromEnvironment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

// Members are killed, stay away for some steps, come back, and the job is scaled.
// LOGICAL_SCHEDULES: the number of schedules; LOGICAL_SEED: the first one.
TEST_F(LogicalWorkersTest, RandomSchedulesEndWithTheBitsOfTheCalmRun) {
  const int first_seed = FromEnvironment("LOGICAL_SEED", static_cast<int>(std::random_device()()));
  const int schedules = FromEnvironment("LOGICAL_SCHEDULES", 3);
  constexpr int kStrikes = 5;
  std::map<std::string, std::map<int64_t, HashesByFile>> calm;
  for (int number = 0; number < schedules; ++number) {
    const uint32_t seed = static_cast<uint32_t>(first_seed) + number;
    std::mt19937 random(seed);
    const auto below = [&](int limit) { return static_cast<int>(random() % limit); };
    const Kind kind = Kinds()[below(static_cast<int>(Kinds().size()))];
    SCOPED_TRACE(absl::StrCat(kind.name, ", LOGICAL_SEED=", seed));
    if (!calm.contains(kind.name)) calm[kind.name] = Calm(kind, /*logical=*/8);
    const std::string job = Begin(kind, /*logical=*/8);
    for (int64_t strike = 1; strike <= kStrikes; ++strike) {
      cluster_->AwaitStep(job, strike * kStepsApart);
      ASSERT_TRUE(cluster_->members().Heal().ok());
      const int action = below(6);
      if (action == 0) {
        Scale(job, 1, 1 + below(kWorkers));
      } else if (action == 1) {
        EXPECT_TRUE(cluster_->members().Restart("coordinator").ok());
      } else if (action == 2) {
        EXPECT_TRUE(cluster_->members().Restart(absl::StrCat("ps-", below(kPs))).ok());
      } else {
        // One worker at least is left.
        std::set<std::string> victims;
        for (int i = 1 + below(kWorkers - 1); i > 0; --i) {
          victims.insert(absl::StrCat("worker-", below(kWorkers)));
        }
        for (const std::string& victim : victims) {
          const int signal = below(2) == 0 ? SIGKILL : SIGTERM;
          const absl::Status killed = cluster_->members().Kill(victim, signal);
          ASSERT_TRUE(killed.ok()) << killed << "\n" << cluster_->Logs();
          if (signal == SIGKILL) continue;
          const absl::Status ended = cluster_->members().AwaitExit(victim, absl::Minutes(1));
          EXPECT_TRUE(ended.ok()) << ended;
        }
      }
    }
    ASSERT_TRUE(cluster_->members().Heal().ok());
    EXPECT_EQ(CountDifferences(End(job, kSteps), calm[kind.name]), 0);
  }
}

}  // namespace
}  // namespace muster::logical_workers_test
