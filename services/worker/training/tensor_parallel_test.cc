// Devices of a worker that share a model train as one device does.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/data/dataset.h"
#include "lib/data/source/open_dataset.h"
#include "lib/exchange/fake_ps.h"
#include "lib/graph/zoo/zoo.h"
#include "lib/status/status.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "proto/muster/v1/job.pb.h"
#include "services/worker/runner/progress_log.h"
#include "services/worker/runner/worker_metrics.h"
#include "services/worker/testing/bad_id.h"
#include "services/worker/testing/stopped_run.h"
#include "services/worker/testing/tiny_jobs.h"
#include "services/worker/testing/training_run.h"
#include "services/worker/training/trainer.h"

namespace muster::tensor_parallel_test {
namespace {

constexpr int64_t kSteps = 100;
constexpr int32_t kVocabulary = 257;  // ranks cannot share it evenly

// A GPT of two layers and 6 heads, on a text.
FakePs::Options Gpt(int degree, bool tied = false, double dropout = 0) {
  FakePs::Options job =
      TextJob(testing::TempDir() + "/training_tensor_parallel_test.txt", /*workers=*/1);
  auto& arguments = *job.spec.mutable_model()->mutable_zoo()->mutable_args()->mutable_fields();
  arguments["layers"].set_number_value(2);
  arguments["heads"].set_number_value(6);
  arguments["channels"].set_number_value(24);
  arguments["context"].set_number_value(8);
  arguments["vocabulary"].set_number_value(kVocabulary);
  arguments["dropout"].set_number_value(dropout);
  arguments["tied"].set_bool_value(tied);
  // Rounding moves the loss by 5e-4 at a rate of 0.1, also on four devices without ranks.
  job.spec.mutable_training()->mutable_optimizer()->mutable_sgd()->set_learning_rate(0.05);
  job.spec.mutable_training()->set_evaluate_every_steps(50);
  job.spec.mutable_resources()->set_tensor_parallel(degree);
  job.graph = BuildModel(job.spec.model()).value();
  return job;
}

// A BERT of the same size, on random ids.
FakePs::Options Bert(int degree) {
  FakePs::Options job = LinearJob(/*workers=*/1);
  job.spec.mutable_data()->mutable_synthetic()->set_samples(64);
  job.spec.mutable_data()->mutable_synthetic()->set_holdout(0.2);
  job.spec.mutable_data()->set_batch_size(7);
  v1::ZooModel& zoo = *job.spec.mutable_model()->mutable_zoo();
  zoo.set_name("bert");
  auto& arguments = *zoo.mutable_args()->mutable_fields();
  arguments["layers"].set_number_value(2);
  arguments["heads"].set_number_value(6);
  arguments["channels"].set_number_value(24);
  arguments["context"].set_number_value(8);
  arguments["positions"].set_number_value(8);
  arguments["vocabulary"].set_number_value(kVocabulary);
  arguments["dropout"].set_number_value(0);
  job.spec.mutable_training()->mutable_optimizer()->mutable_sgd()->set_learning_rate(0.05);
  job.spec.mutable_resources()->set_tensor_parallel(degree);
  job.graph = BuildModel(job.spec.model()).value();
  return job;
}

double LastLoss(const Trained& trained) {
  const v1::JobReport& report = trained.reports.at(0);
  return report.steps(report.steps_size() - 1).loss_share();
}

double EvaluationLoss(const Trained& trained) {
  const v1::JobReport& report = trained.reports.at(0);
  return report.evaluations(report.evaluations_size() - 1).loss_sum();
}

struct Variant {
  std::string name;
  std::function<FakePs::Options(int degree)> job;
};

std::vector<Variant> Variants() {
  const auto changed = [](std::function<void(v1::TrainingSpec&)> change) {
    return [change = std::move(change)](int degree) {
      FakePs::Options job = Gpt(degree);
      change(*job.spec.mutable_training());
      return job;
    };
  };
  return {
      {"Gpt", [](int degree) { return Gpt(degree); }},
      {"TiedGpt", [](int degree) { return Gpt(degree, /*tied=*/true); }},
      {"Dropout", [](int degree) { return Gpt(degree, /*tied=*/false, /*dropout=*/0.1); }},
      {"Bert", [](int degree) { return Bert(degree); }},
      {"Recomputation", changed([](v1::TrainingSpec& spec) { spec.set_recompute(true); })},
      {"MicroBatches", changed([](v1::TrainingSpec& spec) { spec.set_micro_batch_size(2); })},
  };
}

class TensorParallelTest : public testing::TestWithParam<Variant> {};

INSTANTIATE_TEST_SUITE_P(Jobs, TensorParallelTest, testing::ValuesIn(Variants()),
                         [](const auto& info) { return info.param.name; });

void ExpectAlike(const Trained& trained, const Trained& wanted, double tolerance) {
  const double loss = LastLoss(wanted), evaluation = EvaluationLoss(wanted);
  EXPECT_NEAR(LastLoss(trained), loss, tolerance * loss);
  EXPECT_NEAR(EvaluationLoss(trained), evaluation, tolerance * evaluation);
}

TEST_P(TensorParallelTest, DegreesTrainAlike) {
  const Trained alone = Train(GetParam().job(1), kSteps, /*devices=*/1);
  for (const int degree : {2, 4}) {
    SCOPED_TRACE(degree);
    ExpectAlike(Train(GetParam().job(degree), kSteps, /*devices=*/degree), alone, 1e-4);
  }
}

// Two replicas of two ranks each.
TEST_P(TensorParallelTest, ReplicasOfRanksTrainAsReplicasOfOneDevice) {
  const Trained replicas = Train(GetParam().job(1), kSteps, /*devices=*/2);
  ExpectAlike(Train(GetParam().job(2), kSteps, /*devices=*/4), replicas, 1e-4);
}

TEST_P(TensorParallelTest, ADegreeRepeatsToTheBit) {
  const Trained first = Train(GetParam().job(2), /*total_steps=*/10, /*devices=*/4);
  EXPECT_EQ(Train(GetParam().job(2), 10, 4).parameters, first.parameters);
}

TEST(TensorParallelJobTest, FourRanksRepeatFiveTimes) {
  const Trained first = Train(Gpt(4), /*total_steps=*/20, /*devices=*/4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Train(Gpt(4), 20, 4).parameters, first.parameters);
}

TEST(TensorParallelJobTest, SixteenBitsTrainAlike) {
  for (const v1::Precision precision : {v1::BF16, v1::FP16}) {
    for (const bool narrow : {false, true}) {
      const auto train = [&](int degree) {
        FakePs::Options job = Gpt(degree, /*tied=*/true);
        job.spec.mutable_training()->set_precision(precision);
        if (precision == v1::FP16) {
          job.spec.mutable_training()->mutable_loss_scale()->set_initial(128);
        }
        if (narrow) {
          job.spec.mutable_sync()->set_values(precision == v1::BF16 ? v1::VALUES_BF16
                                                                    : v1::VALUES_FP16);
        }
        return Train(job, kSteps, degree);
      };
      ExpectAlike(train(4), train(1), 2.5e-2);
    }
  }
}

// Continues with the values and at the step that another degree left.
TEST(TensorParallelJobTest, AnyDegreeContinuesWithTheValuesOfAnother) {
  const Trained whole = Train(Gpt(1), kSteps, /*devices=*/1);
  FakePs::Options job = Gpt(2);
  for (const auto& [degree, until] : {std::pair(2, 30), std::pair(1, 60), std::pair(4, 100)}) {
    job.spec.mutable_resources()->set_tensor_parallel(degree);
    const Trained part = Train(job, until, degree);
    job.first_step = until;
    job.values = part.parameters;
    if (until == kSteps) ExpectAlike(part, whole, 1e-4);
  }
}

TEST(TensorParallelJobTest, OtherWaysToSynchroniseWorkersTrainAlike) {
  const auto with = [](v1::SyncMode mode) {
    return [mode](int degree) {
      FakePs::Options job = Gpt(degree);
      job.workers = 2;
      job.spec.mutable_sync()->set_mode(mode);
      job.spec.mutable_sync()->set_every(4);
      job.total_steps = 20;
      return Train(job, 20, degree);
    };
  };
  ExpectAlike(with(v1::BSP)(2), with(v1::BSP)(1), 1e-4);
  ExpectAlike(with(v1::LOCAL_SGD)(2), with(v1::LOCAL_SGD)(1), 1e-4);
}

TEST(TensorParallelJobTest, LogicalWorkersHaveTheSameBitsOnAnyNumberOfWorkers) {
  FakePs::Options job = Gpt(2);
  job.spec.mutable_data()->set_batch_size(9);
  job.spec.mutable_resources()->mutable_workers()->set_logical(4);
  for (const int devices : {2, 4}) {
    job.workers = 1;
    const Trained one = Train(job, 10, devices);
    for (const int workers : {2, 3, 4}) {
      job.workers = workers;
      EXPECT_EQ(Train(job, 10, devices).parameters, one.parameters)
          << workers << " workers of " << devices << " devices";
    }
  }
}

TEST(TensorParallelJobTest, FrozenParametersStayAsTheyAre) {
  const auto train = [](int degree, int devices) {
    FakePs::Options job = Gpt(degree, /*tied=*/true);
    v1::ParameterGroup& group = *job.spec.mutable_training()->add_parameter_groups();
    group.add_match("*embedding*");
    group.set_frozen(true);
    return Train(job, 20, devices);
  };
  const Trained alone = train(1, 1);
  ExpectAlike(train(2, 2), alone, 1e-4);
  ExpectAlike(train(2, 4), alone, 1e-4);
}

TEST(TensorParallelJobTest, AWorkerThatIsPausedOrLosesItsPsGoesOnWithTheSameBits) {
  const uint32_t seed = std::random_device()();
  for (int i = 0; i < 4; ++i) {
    FakePs::Options job = Gpt(2);
    if (i % 4 == 1) job.spec.mutable_training()->set_micro_batch_size(2);
    if (i % 4 == 2) job.spec.mutable_resources()->mutable_workers()->set_logical(2);
    if (i % 4 == 3) job.spec.mutable_training()->set_evaluate_every_steps(1);
    StopAndContinue(job, /*total_steps=*/20, 2 + 2 * (i % 2), seed + i,
                    [](Trainer& trainer, FakePs&) { trainer.Pause(); });
    StopAndContinue(job, /*total_steps=*/20, 4 - 2 * (i % 2), seed + i, [](Trainer&, FakePs& ps) {
      for (int shard = 0; shard < 2; ++shard) ps.shard(shard).Stop();
    });
  }
}

// One rank may notice the end before the others, which then wait for it in the evaluation.
TEST(TensorParallelJobTest, ACancelledJobDoesNotHang) {
  FakePs::Options job = Gpt(4);
  job.spec.mutable_training()->set_evaluate_every_steps(1);
  const uint32_t seed = std::random_device()();
  for (int i = 0; i < 10; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", seed + i));
    InProcessNetwork network;
    FakePs ps(network, job);
    Metrics metrics;
    WorkerMetrics worker_metrics(metrics);
    ProgressLog log;
    auto trainer = *Trainer::Create({.plan = ps.plan(),
                                     .devices = std::vector<std::string>(4, "cpu"),
                                     .transport = [&network] { return network.MakeTransport(); },
                                     .log = &log,
                                     .metrics = &worker_metrics});
    ASSERT_TRUE(trainer->Start(/*total_steps=*/1000, {}).ok());
    std::mt19937 random(seed + i);
    const int64_t stop_at = 1 + random() % 3;
    while (trainer->next_step() < stop_at) ASSERT_TRUE(trainer->Step().ok());
    const std::jthread stopper([&] {
      for (uint32_t spins = random() % 400'000; spins > 0; --spins) {
        std::atomic_thread_fence(std::memory_order_seq_cst);
      }
      trainer->Cancel(absl::CancelledError("cancelled"));
    });
    absl::Status status;
    while (status.ok() && !trainer->done()) status = trainer->Step();
    EXPECT_FALSE(status.ok());
  }
}

absl::StatusOr<std::unique_ptr<Trainer>> TrainerWith(const FakePs& ps,
                                                     std::vector<std::string> devices,
                                                     InProcessNetwork& network, ProgressLog& log,
                                                     WorkerMetrics& metrics) {
  return Trainer::Create(
      {.plan = ps.plan(),
       .devices = std::move(devices),
       .transport = [&network] { return network.MakeTransport(); },
       .log = &log,
       .metrics = &metrics,
       .open_data = [](const v1::DataSpec& spec, const v1::Graph& graph, const DataOptions& options)
           -> absl::StatusOr<std::unique_ptr<const Dataset>> {
         return std::make_unique<BadId>(OpenDataset(spec, graph, options).value(), /*sample=*/5,
                                        /*input=*/0, /*id=*/kVocabulary);
       }});
}

// The ranks of one replica fail, and those of the other wait for their gradients.
TEST(TensorParallelJobTest, AFailureOfOneReplicaEndsTheWaitsOfTheOthersAndIsReported) {
  FakePs::Options job = Gpt(2);
  job.spec.mutable_data()->set_batch_size(256);
  for (const int devices : {2, 4}) {
    InProcessNetwork network;
    FakePs ps(network, job);
    Metrics metrics;
    WorkerMetrics worker_metrics(metrics);
    ProgressLog log;
    auto trainer =
        *TrainerWith(ps, std::vector<std::string>(devices, "cpu"), network, log, worker_metrics);
    ASSERT_TRUE(trainer->Start(/*total_steps=*/100'000, {}).ok());
    absl::Status failed;
    while (failed.ok() && !trainer->done()) failed = trainer->Step();
    EXPECT_TRUE(absl::IsInvalidArgument(failed)) << failed;
    EXPECT_TRUE(absl::StrContains(failed.message(), absl::StrCat(kVocabulary))) << failed;
  }
}

TEST(TensorParallelJobTest, RefusesDevicesThatCannotShareTheModel) {
  const FakePs::Options job = Gpt(2);
  for (const int devices : {1, 3}) {
    InProcessNetwork network;
    FakePs ps(network, job);
    Metrics metrics;
    WorkerMetrics worker_metrics(metrics);
    ProgressLog log;
    const absl::Status refused =
        TrainerWith(ps, std::vector<std::string>(devices, "cpu"), network, log, worker_metrics)
            .status();
    EXPECT_EQ(ReasonOf(refused), "TENSOR_PARALLEL_DEVICES") << refused;
    EXPECT_TRUE(absl::StrContains(
        refused.message(),
        absl::StrCat("resources.tensor_parallel is 2 and this worker has ", devices, " device")))
        << refused;
  }
}

}  // namespace
}  // namespace muster::tensor_parallel_test
