// Devices of a worker that normalise together train as one device does.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/data/dataset.h"
#include "lib/data/source/open_dataset.h"
#include "lib/engine/backends/backends.h"
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

namespace muster::synchronised_norms_test {
namespace {

constexpr int64_t kSteps = 40;

// A residual network of two bottlenecks; with 2 and 4 devices the shares of the batch are uneven.
FakePs::Options ResNet(bool synchronised, int64_t batch = 33) {
  FakePs::Options job = LinearJob(/*workers=*/1);
  job.spec.mutable_data()->mutable_synthetic()->set_samples(64);
  job.spec.mutable_data()->set_batch_size(batch);
  v1::ZooModel& zoo = *job.spec.mutable_model()->mutable_zoo();
  zoo.set_name("resnet50");
  auto& arguments = *zoo.mutable_args()->mutable_fields();
  arguments["image"].set_number_value(32);
  arguments["classes"].set_number_value(4);
  arguments["width"].set_number_value(4);
  arguments["blocks"].set_string_value("1,1");
  arguments["synchronised"].set_bool_value(synchronised);
  job.spec.mutable_training()->mutable_optimizer()->mutable_sgd()->set_learning_rate(0.01);
  job.graph = BuildModel(job.spec.model()).value();
  return job;
}

// Returns the largest difference of all parameters, relative to the largest value of each.
double Difference(const Trained& a, const Trained& b) {
  double difference = 0;
  for (size_t p = 0; p < a.parameters.size(); ++p) {
    double largest = 0, of_parameter = 0;
    for (size_t i = 0; i < a.parameters[p].size(); ++i) {
      largest = std::max<double>(largest, std::abs(b.parameters[p][i]));
      of_parameter =
          std::max<double>(of_parameter, std::abs(a.parameters[p][i] - b.parameters[p][i]));
    }
    difference = std::max(difference, of_parameter / largest);
  }
  return difference;
}

// The steps are few: rounding may move a value across 0 in a relu at any later step.
TEST(SynchronisedNormsTest, DevicesDoNotChangeTheParameters) {
  constexpr int64_t kFewSteps = 5;
  const Trained alone = Train(ResNet(/*synchronised=*/true), kFewSteps, /*devices=*/1);
  for (const int devices : {2, 4}) {
    const Trained together = Train(ResNet(/*synchronised=*/true), kFewSteps, devices);
    EXPECT_LE(Difference(together, alone), 1e-5) << devices;
    const Trained apart = Train(ResNet(/*synchronised=*/false), kFewSteps, devices);
    EXPECT_GT(Difference(apart, alone), 1e-3) << devices << " devices, the control";
  }
}

// Skips on a machine with fewer than two GPUs.
TEST(SynchronisedNormsTest, GpusDoNotChangeTheParameters) {
  for (const char* gpu : {"cuda:0", "cuda:1"}) {
    const absl::Status available = CreateDevice(gpu, /*threads=*/1).status();
    if (!available.ok()) GTEST_SKIP() << available;
  }
  FakePs::Options job = ResNet(/*synchronised=*/true);
  const Trained alone = TrainOn(job, 5, {"cuda:0"});
  const Trained together = TrainOn(job, 5, {"cuda:0", "cuda:1"});
  EXPECT_LE(Difference(together, alone), 2e-4);
  EXPECT_GT(Difference(TrainOn(ResNet(/*synchronised=*/false), 5, {"cuda:0", "cuda:1"}), alone),
            1e-3)
      << "the control";
  EXPECT_EQ(TrainOn(job, 5, {"cuda:0", "cuda:1"}).parameters, together.parameters);
  job.spec.mutable_training()->set_micro_batch_size(16);  // 17 and 16 samples
  EXPECT_EQ(TrainOn(job, 5, {"cuda:0", "cuda:1"}).parameters,
            TrainOn(job, 5, {"cuda:0", "cuda:1"}).parameters);
}

// A micro-batch is normalised over the devices, so the results depend on their number.
TEST(SynchronisedNormsTest, MicroBatchesRepeatToTheBit) {
  const auto train = [](bool synchronised, int devices) {
    FakePs::Options job = ResNet(synchronised);
    job.spec.mutable_training()->set_micro_batch_size(16);  // 17 and 16 samples
    return Train(job, 5, devices);
  };
  for (const int devices : {2, 4}) {
    const Trained together = train(/*synchronised=*/true, devices);
    EXPECT_EQ(train(/*synchronised=*/true, devices).parameters, together.parameters) << devices;
    EXPECT_GT(Difference(train(/*synchronised=*/false, devices), together), 1e-3) << devices;
  }
}

// Each share of a logical worker is normalised over all devices of its worker.
TEST(SynchronisedNormsTest, DevicesDoNotChangeTheSharesOfLogicalWorkers) {
  const auto train = [](bool synchronised, int devices) {
    FakePs::Options job = ResNet(synchronised);
    job.spec.mutable_resources()->mutable_workers()->set_logical(3);
    return Train(job, 5, devices);
  };
  const Trained alone = train(/*synchronised=*/true, /*devices=*/1);
  for (const int devices : {2, 4}) {
    EXPECT_LE(Difference(train(/*synchronised=*/true, devices), alone), 1e-5) << devices;
    EXPECT_GT(Difference(train(/*synchronised=*/false, devices), alone), 1e-3) << devices;
  }
}

// One device may be interrupted in its wait for a parameter while another one waits for it in a
// norm.
TEST(SynchronisedNormsTest, AWorkerThatIsPausedOrLosesItsPsGoesOnWithTheSameBits) {
  const uint32_t seed = std::random_device()();
  for (int i = 0; i < 6; ++i) {
    FakePs::Options job = ResNet(/*synchronised=*/true, /*batch=*/8);
    if (i % 3 == 1) job.spec.mutable_training()->set_micro_batch_size(2);
    if (i % 3 == 2) job.spec.mutable_resources()->mutable_workers()->set_logical(2);
    StopAndContinue(job, kSteps, 2 + i % 2, seed + i,
                    [](Trainer& trainer, FakePs&) { trainer.Pause(); });
    StopAndContinue(job, kSteps, 2 + i % 2, seed + i, [](Trainer&, FakePs& ps) {
      for (int shard = 0; shard < 2; ++shard) ps.shard(shard).Stop();
    });
  }
}

// The loss of one device fails. The other ones wait for it in the norms of the backward pass.
TEST(SynchronisedNormsTest, AFailureOfOneDeviceEndsTheWaitsOfTheOthersAndIsReported) {
  const FakePs::Options job = ResNet(/*synchronised=*/true, /*batch=*/8);
  int labels = 0;
  while (job.graph.inputs(labels).dtype() != v1::DTYPE_I32) ++labels;
  for (const int devices : {2, 4}) {
    InProcessNetwork network;
    FakePs ps(network, job);
    Metrics metrics;
    WorkerMetrics worker_metrics(metrics);
    ProgressLog log;
    auto trainer =
        Trainer::Create({.plan = ps.plan(),
                         .devices = std::vector<std::string>(devices, "cpu"),
                         .transport = [&network] { return network.MakeTransport(); },
                         .log = &log,
                         .metrics = &worker_metrics,
                         .open_data = [&](const v1::DataSpec& spec, const v1::Graph& graph,
                                          const DataOptions& options)
                             -> absl::StatusOr<std::unique_ptr<const Dataset>> {
                           return std::make_unique<BadId>(OpenDataset(spec, graph, options).value(),
                                                          /*sample=*/5, labels, /*id=*/4);
                         }})
            .value();
    ASSERT_TRUE(trainer->Start(kSteps, {}).ok());
    absl::Status failed;
    while (failed.ok() && !trainer->done()) failed = trainer->Step();
    EXPECT_TRUE(absl::IsInvalidArgument(failed)) << failed;
    EXPECT_TRUE(absl::StrContains(failed.message(), "4")) << failed;
  }
}

TEST(SynchronisedNormsTest, RefusesDevicesWithUnequalNumbersOfMicroBatches) {
  FakePs::Options job = ResNet(/*synchronised=*/true, /*batch=*/3);
  job.spec.mutable_training()->set_micro_batch_size(1);
  InProcessNetwork network;
  FakePs ps(network, job);
  Metrics metrics;
  WorkerMetrics worker_metrics(metrics);
  ProgressLog log;
  const absl::Status refused =
      Trainer::Create({.plan = ps.plan(),
                       .devices = {"cpu", "cpu"},
                       .transport = [&network] { return network.MakeTransport(); },
                       .log = &log,
                       .metrics = &worker_metrics})
          .status();
  EXPECT_EQ(ReasonOf(refused), "SYNCHRONISED_DEVICES") << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "(BatchNorm)")) << refused;
}

}  // namespace
}  // namespace muster::synchronised_norms_test
