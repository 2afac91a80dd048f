// Jobs with logical workers have the same bits on any number of workers.
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/exchange/fake_ps.h"
#include "lib/graph/zoo/zoo.h"
#include "proto/muster/v1/job.pb.h"
#include "services/worker/testing/stopped_run.h"
#include "services/worker/testing/tiny_jobs.h"
#include "services/worker/testing/training_run.h"
#include "services/worker/training/trainer.h"

namespace muster::logical_workers_test {
namespace {

constexpr int kLogical = 8;
constexpr int64_t kSteps = 3;
constexpr int kWorkerCounts[] = {1, 2, 3, 4, 5, 8};

using Arguments = std::vector<std::pair<std::string, double>>;

void SetModel(FakePs::Options& job, const std::string& name, const Arguments& arguments) {
  v1::ZooModel& zoo = *job.spec.mutable_model()->mutable_zoo();
  zoo.Clear();
  zoo.set_name(name);
  for (const auto& [key, value] : arguments) {
    (*zoo.mutable_args()->mutable_fields())[key].set_number_value(value);
  }
  job.graph = BuildModel(job.spec.model()).value();
}

FakePs::Options TextModel(const std::string& name, Arguments arguments, bool tied) {
  const std::string path = testing::TempDir() + "/logical_workers_test.txt";
  FakePs::Options job = TextJob(path, /*workers=*/1);
  SetModel(job, name, arguments);
  (*job.spec.mutable_model()->mutable_zoo()->mutable_args()->mutable_fields())["tied"]
      .set_bool_value(tied);
  job.graph = BuildModel(job.spec.model()).value();
  return job;
}

FakePs::Options Gpt(bool tied = true) {
  return TextModel(
      "gpt", {{"layers", 1}, {"heads", 2}, {"channels", 16}, {"context", 8}, {"dropout", 0.1}},
      tied);
}

FakePs::Options Lstm() {
  return TextModel("lstm_lm",
                   {{"layers", 1}, {"channels", 12}, {"context", 6}, {"vocabulary", 256}}, true);
}

FakePs::Options ResNet(bool synchronised = false) {
  FakePs::Options job = LinearJob(/*workers=*/1);
  job.spec.mutable_data()->mutable_synthetic()->set_samples(64);
  job.spec.mutable_data()->mutable_synthetic()->set_holdout(0.2);
  SetModel(job, "resnet50", {{"image", 32}, {"classes", 4}, {"width", 4}});
  (*job.spec.mutable_model()->mutable_zoo()->mutable_args()->mutable_fields())["blocks"]
      .set_string_value("1,1");
  (*job.spec.mutable_model()->mutable_zoo()->mutable_args()->mutable_fields())["synchronised"]
      .set_bool_value(synchronised);
  job.graph = BuildModel(job.spec.model()).value();
  return job;
}

double LossOf(const Trained& trained) {
  double loss = 0;
  for (const v1::JobReport& report : trained.reports) {
    loss += report.evaluations(report.evaluations_size() - 1).loss_sum();
  }
  return loss;
}

// Trains the job on each number of workers. All must end with the same parameters.
void ExpectSameBits(FakePs::Options job, int devices, int64_t batch) {
  job.spec.mutable_resources()->mutable_workers()->set_logical(kLogical);
  job.spec.mutable_data()->set_batch_size(batch);
  std::optional<Trained> alone;
  for (const int workers : kWorkerCounts) {
    job.workers = workers;
    Trained trained = Train(job, kSteps, devices);
    if (!alone) {
      alone = std::move(trained);
      continue;
    }
    EXPECT_EQ(trained.parameters, alone->parameters)
        << workers << " workers of " << devices << " devices, batch " << batch;
    EXPECT_NEAR(LossOf(trained), LossOf(*alone), 1e-6 * std::abs(LossOf(*alone)));
  }
}

TEST(LogicalWorkersTest, GptHasTheSameBitsOnAnyNumberOfWorkers) {
  ExpectSameBits(Gpt(), /*devices=*/1, /*batch=*/16);
  ExpectSameBits(Gpt(/*tied=*/false), /*devices=*/1, /*batch=*/19);
}

TEST(LogicalWorkersTest, SoHaveWorkersOfSeveralDevices) {
  ExpectSameBits(Gpt(), /*devices=*/2, /*batch=*/19);
  ExpectSameBits(Gpt(), /*devices=*/3, /*batch=*/27);
  ExpectSameBits(Lstm(), /*devices=*/2, /*batch=*/16);
}

TEST(LogicalWorkersTest, BatchNormalizationUsesTheStatisticsOfEachShare) {
  ExpectSameBits(ResNet(), /*devices=*/1, /*batch=*/16);
  ExpectSameBits(ResNet(), /*devices=*/2, /*batch=*/33);
}

// Each share is normalised over all devices of its worker.
TEST(LogicalWorkersTest, SynchronisedBatchNormalizationHasTheSameBits) {
  ExpectSameBits(ResNet(/*synchronised=*/true), /*devices=*/2, /*batch=*/33);
  ExpectSameBits(ResNet(/*synchronised=*/true), /*devices=*/3, /*batch=*/27);
}

TEST(LogicalWorkersTest, LstmHasTheSameBits) { ExpectSameBits(Lstm(), 1, /*batch=*/17); }

TEST(LogicalWorkersTest, PrecisionsAndOptionsKeepTheBits) {
  const std::vector<std::function<void(FakePs::Options&)>> changes = {
      [](FakePs::Options& job) { job.spec.mutable_training()->set_precision(v1::BF16); },
      [](FakePs::Options& job) {
        job.spec.mutable_training()->set_precision(v1::FP16);
        job.spec.mutable_training()->mutable_loss_scale()->set_initial(1024);
      },
      [](FakePs::Options& job) { job.spec.mutable_training()->set_recompute(true); },
      [](FakePs::Options& job) { job.spec.mutable_sync()->set_values(v1::VALUES_BF16); },
      [](FakePs::Options& job) {
        v1::ParameterGroup& group = *job.spec.mutable_training()->add_parameter_groups();
        group.add_match("*embedding*");
        group.set_frozen(true);
      },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    FakePs::Options job = Gpt(/*tied=*/false);
    changes[i](job);
    ExpectSameBits(job, /*devices=*/1, /*batch=*/16);
    ExpectSameBits(job, /*devices=*/2, /*batch=*/16);
  }
}

TEST(LogicalWorkersTest, AWorkerThatIsPausedOrLosesItsPsGoesOnWithTheSameBits) {
  constexpr int64_t kAllSteps = 40;
  FakePs::Options job = Gpt();
  job.spec.mutable_data()->set_batch_size(27);
  job.spec.mutable_resources()->mutable_workers()->set_logical(kLogical);
  const uint32_t seed = std::random_device()();
  for (int i = 0; i < 12; ++i) {
    StopAndContinue(job, kAllSteps, 1 + i % 3, seed + i,
                    [](Trainer& trainer, FakePs&) { trainer.Pause(); });
    StopAndContinue(job, kAllSteps, 1 + i % 3, seed + i, [](Trainer&, FakePs& ps) {
      for (int shard = 0; shard < 2; ++shard) ps.shard(shard).Stop();
    });
  }
}

TEST(LogicalWorkersTest, WithoutLogicalWorkersTheBitsDiffer) {
  FakePs::Options job = Gpt();
  job.spec.mutable_data()->set_batch_size(16);
  const Trained alone = Train(job, kSteps, /*devices=*/1);
  job.workers = 3;
  EXPECT_NE(Train(job, kSteps, /*devices=*/1).parameters, alone.parameters);
}

TEST(LogicalWorkersTest, AsManyWorkersAsSharesTrainAsWithoutLogicalWorkers) {
  FakePs::Options job = Gpt();
  job.spec.mutable_data()->set_batch_size(16);
  job.workers = 2;
  const Trained plain = Train(job, kSteps, /*devices=*/1);
  job.spec.mutable_resources()->mutable_workers()->set_logical(2);
  EXPECT_EQ(Train(job, kSteps, /*devices=*/1).parameters, plain.parameters);
}

}  // namespace
}  // namespace muster::logical_workers_test
