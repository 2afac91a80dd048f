#include "services/worker/training/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gtest/gtest.h"
#include "lib/data/dataset.h"
#include "lib/data/file/data_file.h"
#include "lib/data/order/sample_order.h"
#include "lib/data/source/open_dataset.h"
#include "lib/exchange/fake_ps.h"
#include "lib/graph/cost.h"
#include "lib/graph/graph_text.h"
#include "lib/graph/zoo/zoo.h"
#include "lib/status/status.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "services/worker/testing/tiny_jobs.h"
#include "services/worker/testing/training_run.h"

namespace muster::trainer_test {
namespace {

double LossOf(const Trained& trained, int step) {
  double loss = 0;
  for (const v1::JobReport& report : trained.reports) loss += report.steps(step).loss_share();
  return loss;
}

void ExpectSameParameters(const Trained& a, const Trained& b, double tolerance) {
  for (size_t p = 0; p < a.parameters.size(); ++p) {
    ASSERT_EQ(a.parameters[p].size(), b.parameters[p].size());
    for (size_t i = 0; i < a.parameters[p].size(); ++i) {
      EXPECT_NEAR(a.parameters[p][i], b.parameters[p][i], tolerance) << p << " " << i;
    }
  }
}

TEST(TrainerTest, TwoWorkersLearnALine) {
  const Trained trained = Train(LinearJob(/*workers=*/2), 200, /*devices=*/1);
  EXPECT_NEAR(trained.parameters[0][0], 3, 0.03);
  EXPECT_NEAR(trained.parameters[1][0], -0.5, 0.005);
  EXPECT_LT(LossOf(trained, 199), 1e-4);
  for (const v1::JobReport& report : trained.reports) {
    ASSERT_EQ(report.steps_size(), 200);
    for (int s = 0; s < 200; ++s) EXPECT_EQ(report.steps(s).step(), s);
    EXPECT_EQ(report.steps(7).learning_rate(), 0.3);
    EXPECT_GT(report.steps(0).gradient_norm(), 0);
    EXPECT_EQ(report.evaluations_size(), 0) << "nothing is held out";
  }
  EXPECT_EQ(trained.reports[0].steps(50).gradient_norm(),
            trained.reports[1].steps(50).gradient_norm());
}

TEST(TrainerTest, FlopsOfAllWorkersAddUpToThoseOfTheModel) {
  const std::string path = testing::TempDir() + "/trainer_test_flops.txt";
  const FakePs::Options job = TextJob(path, /*workers=*/2);
  const Trained trained = Train(job, /*total_steps=*/3, /*devices=*/1);
  const auto cost = GraphCost(job.graph, job.spec.data().batch_size());
  ASSERT_TRUE(cost.ok()) << cost.status();
  EXPECT_GT(cost->forward.flops, 0);
  EXPECT_EQ(trained.flops[0] + trained.flops[1],
            3.0 * static_cast<double>(cost->forward.flops + cost->backward.flops));
}

// The peak of a CPU is unknown unless a flag sets it. The peak of two devices is twice that of one.
TEST(TrainerTest, PeakIsTheSumOverTheDevicesInUse) {
  const std::string path = testing::TempDir() + "/trainer_test_peak.txt";
  InProcessNetwork network;
  FakePs ps(network, TextJob(path, /*workers=*/1));
  Metrics metrics;
  WorkerMetrics worker_metrics(metrics);
  ProgressLog log;
  Trainer::Options options{.plan = ps.plan(),
                           .devices = {"cpu", "cpu"},
                           .transport = [&network] { return network.MakeTransport(); },
                           .log = &log,
                           .metrics = &worker_metrics};
  options.peak_flops = 1.5e9;
  ASSERT_TRUE(Trainer::Create(options).ok());
  EXPECT_NE(metrics.Render().find("\nmuster_worker_peak_flops 3000000000\n"), std::string::npos);
  options.peak_flops = 0;
  ASSERT_TRUE(Trainer::Create(options).ok());
  EXPECT_EQ(metrics.Render().find("muster_worker_peak_flops"), std::string::npos);
}

TEST(TrainerTest, DeviceKindCountsTheDevicesInUse) {
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/1));
  Metrics metrics;
  WorkerMetrics worker_metrics(metrics);
  ProgressLog log;
  const auto kind = [&](int devices) {
    const auto trainer =
        Trainer::Create({.plan = ps.plan(),
                         .devices = std::vector<std::string>(devices, "cpu"),
                         .threads_per_device = 3,
                         .transport = [&network] { return network.MakeTransport(); },
                         .log = &log,
                         .metrics = &worker_metrics});
    return trainer.ok() ? (*trainer)->device_kind() : trainer.status().ToString();
  };
  EXPECT_EQ(kind(1).find("1 device, 3 threads, "), 0) << kind(1);
  EXPECT_EQ(kind(2), absl::StrCat("2 devices", kind(1).substr(kind(1).find(','))));
}

// With two devices, one of them may have contributed to the abandoned step.
TEST(TrainerTest, NextGenerationReusesTheTrainer) {
  const std::string path = testing::TempDir() + "/trainer_test_continue.txt";
  const Trained undisturbed = Train(TextJob(path, /*workers=*/1), 6, /*devices=*/2);
  InProcessNetwork network;
  FakePs lost(network, TextJob(path, /*workers=*/1)), ps(network, TextJob(path, /*workers=*/1));
  Metrics metrics;
  WorkerMetrics worker_metrics(metrics);
  ProgressLog log, next_log;
  Trainer::Options options{.plan = lost.plan(),
                           .devices = {"cpu", "cpu"},
                           .transport = [&network] { return network.MakeTransport(); },
                           .log = &log,
                           .metrics = &worker_metrics};
  auto trainer = *Trainer::Create(options);
  ASSERT_TRUE(trainer->Start(100, {}).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(trainer->Step().ok());
  const std::string reduced =
      "muster_collective_operations_total{library=\"shared_memory\",operation=\"reduce_scatter\"} ";
  EXPECT_NE(metrics.Render().find(reduced), std::string::npos);
  EXPECT_EQ(metrics.Render().find(reduced + "0\n"), std::string::npos);
  for (int i = 0; i < 2; ++i) lost.shard(i).Stop();
  ASSERT_FALSE(trainer->Step().ok());
  trainer->Halt(absl::CancelledError("halted"));
  ASSERT_TRUE(trainer->GiveUp().ok());

  options.plan = ps.plan();
  options.log = &next_log;
  const Trainer* const same = trainer.get();
  trainer = *Trainer::Continue(std::move(trainer), options);
  ASSERT_EQ(trainer.get(), same);
  EXPECT_EQ(trainer->next_step(), 0);
  EXPECT_EQ(trainer->timing().steps(), 0) << "the report before the start has no steps";
  ASSERT_TRUE(trainer->Start(6, {}).ok());
  while (!trainer->done()) ASSERT_TRUE(trainer->Step().ok());
  v1::JobReport report;
  next_log.AddTo(report);
  EXPECT_EQ(report.steps_size(), 6);
  const v1::StepTiming timing = trainer->timing();
  EXPECT_EQ(timing.steps(), 6) << "steps of the previous generation do not count";
  EXPECT_NEAR(timing.data_seconds() + timing.compute_seconds() + timing.wait_seconds(),
              timing.step_seconds(), 1e-6);
  EXPECT_NEAR(timing.forward_seconds() + timing.backward_seconds(), timing.compute_seconds(), 1e-6);
  EXPECT_GT(timing.forward_seconds(), 0);
  EXPECT_GT(timing.backward_seconds(), 0);
  EXPECT_GT(timing.sent_bytes(), 0);
  EXPECT_LT(timing.sent_bytes(), static_cast<int64_t>(worker_metrics.exchange.push_bytes.Value()));
  for (size_t p = 0; p < undisturbed.parameters.size(); ++p) {
    EXPECT_EQ(ps.parameter(p), undisturbed.parameters[p]) << p;
  }

  auto other_share = std::make_shared<v1::JobPlan>(*ps.plan());
  other_share->mutable_workers(0)->set_samples(other_share->workers(0).samples() - 1);
  options.plan = other_share;
  ASSERT_EQ(std::remove(path.c_str()), 0);
  trainer = *Trainer::Continue(std::move(trainer), options);
  ASSERT_NE(trainer, nullptr) << "the data stay open";
  EXPECT_GT(trainer->dataset().samples(), 0);

  auto other_job = std::make_shared<v1::JobPlan>(*ps.plan());
  other_job->set_job_number(other_job->job_number() + 1);
  options.plan = other_job;
  EXPECT_EQ(*Trainer::Continue(std::move(trainer), options), nullptr);
}

// A worker that had the whole batch gets a share of it in the next generation. It learns the same
// as a new worker, and keeps its memory.
TEST(TrainerTest, AnotherShareReusesTheMemory) {
  const std::string path = testing::TempDir() + "/trainer_test_share.txt";
  const FakePs::Options job = TextJob(path, /*workers=*/2);
  for (const int devices : {1, 2}) {
    const Trained expected = Train(job, 5, devices);
    InProcessNetwork network;
    FakePs alone(network, TextJob(path, /*workers=*/1)), ps(network, job);
    Metrics metrics;
    WorkerMetrics worker_metrics(metrics);
    ProgressLog log;
    Trainer::Options options{.plan = alone.plan(),
                             .rank = Rank(0),
                             .devices = std::vector<std::string>(devices, "cpu"),
                             .transport = [&network] { return network.MakeTransport(); },
                             .log = &log,
                             .metrics = &worker_metrics};
    auto before = *Trainer::Create(options);
    ASSERT_TRUE(before->Start(100, {}).ok());
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(before->Step().ok());
    before->Halt(absl::CancelledError("halted"));
    ASSERT_TRUE(before->GiveUp().ok());
    const Trainer* const same = before.get();

    ProgressLog logs[2];
    options.plan = ps.plan();
    const auto train = [&](std::unique_ptr<Trainer> trainer) {
      ASSERT_TRUE(trainer->Start(5, {}).ok());
      while (!trainer->done()) ASSERT_TRUE(trainer->Step().ok());
    };
    std::jthread other([&, options] {
      Trainer::Options newcomer = options;
      newcomer.rank = Rank(1);
      newcomer.log = &logs[1];
      auto trainer = Trainer::Create(newcomer);
      ASSERT_TRUE(trainer.ok()) << trainer.status();
      train(*std::move(trainer));
    });
    options.log = &logs[0];
    auto trainer = Trainer::Continue(std::move(before), options);
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    EXPECT_EQ(trainer->get(), same);
    EXPECT_EQ((*trainer)->next_step(), 0);
    train(*std::move(trainer));
    other.join();
    for (size_t p = 0; p < expected.parameters.size(); ++p) {
      EXPECT_EQ(ps.parameter(static_cast<int>(p)), expected.parameters[p]) << devices << " " << p;
    }
    v1::JobReport report;
    logs[0].AddTo(report);
    ASSERT_EQ(report.steps_size(), 5);
    ASSERT_EQ(report.evaluations_size(), expected.reports[0].evaluations_size());
    EXPECT_EQ(report.evaluations(0).loss_sum(), expected.reports[0].evaluations(0).loss_sum());
  }
}

// Returns the loss of step 0 of a job that leaves out its first batch. The trainer is new, or it
// continues after it was halted in step 0 of the whole job.
double LossWithoutTheFirstBatch(const FakePs::Options& job, bool continued) {
  InProcessNetwork network;
  FakePs lost(network, job), ps(network, job);
  Metrics metrics;
  WorkerMetrics worker_metrics(metrics);
  ProgressLog log, next_log;
  auto plan = std::make_shared<v1::JobPlan>(*ps.plan());
  plan->add_left_out_batches(0);
  Trainer::Options next{.plan = plan,
                        .devices = {"cpu"},
                        .transport = [&network] { return network.MakeTransport(); },
                        .log = &next_log,
                        .metrics = &worker_metrics};
  Trainer::Options before = next;
  before.plan = lost.plan();
  before.log = &log;
  auto trainer = *Trainer::Create(continued ? before : next);
  if (continued) {
    EXPECT_TRUE(trainer->Start(100, {}).ok());
    trainer->Halt(absl::CancelledError("halted"));
    EXPECT_FALSE(trainer->Step().ok());
    trainer = *Trainer::Continue(std::move(trainer), next);
  }
  EXPECT_TRUE(trainer->Start(1, {}).ok());
  while (!trainer->done()) EXPECT_TRUE(trainer->Step().ok());
  v1::JobReport report;
  next_log.AddTo(report);
  return report.steps(0).loss_share();
}

// A device may already hold the rows that step 0 had in the previous generation.
TEST(TrainerTest, StepReadsTheRowsOfItsOwnGeneration) {
  const FakePs::Options job =
      TextJob(testing::TempDir() + "/trainer_test_left_out.txt", /*workers=*/1);
  const double expected = LossWithoutTheFirstBatch(job, /*continued=*/false);
  EXPECT_NE(expected, LossOf(Train(job, 1, /*devices=*/1), 0));
  EXPECT_EQ(LossWithoutTheFirstBatch(job, /*continued=*/true), expected);
}

TEST(TrainerTest, FirstGradientNormIsThatOfTheBatch) {
  const Trained trained = Train(LinearJob(/*workers=*/1), 1, /*devices=*/1);
  const Trained untrained = Train(LinearJob(/*workers=*/1), 1, /*devices=*/1);
  ExpectSameParameters(trained, untrained, 0);
  FakePs::Options still = LinearJob(1);
  still.spec.mutable_training()->mutable_optimizer()->mutable_sgd()->set_learning_rate(0);
  const Trained initial = Train(still, 1, /*devices=*/1);
  double squares = 0;
  for (int p = 0; p < 2; ++p) {
    const double gradient = (initial.parameters[p][0] - trained.parameters[p][0]) / 0.3;
    squares += gradient * gradient;
  }
  EXPECT_NEAR(trained.reports[0].steps(0).gradient_norm(), std::sqrt(squares), 1e-5);
}

TEST(TrainerTest, DevicesAndWorkersDoNotChangeTheParameters) {
  const std::string path = testing::TempDir() + "/trainer_test.txt";
  const Trained alone = Train(TextJob(path, /*workers=*/1), 6, /*devices=*/1);
  const Trained devices = Train(TextJob(path, /*workers=*/1), 6, /*devices=*/2);
  const Trained workers = Train(TextJob(path, /*workers=*/2), 6, /*devices=*/2);
  ExpectSameParameters(alone, devices, 1e-6);
  ExpectSameParameters(alone, workers, 1e-6);
  for (int step = 0; step < 6; ++step) {
    EXPECT_NEAR(LossOf(alone, step), LossOf(devices, step), 1e-6);
    EXPECT_NEAR(LossOf(alone, step), LossOf(workers, step), 1e-6);
  }
}

TEST(TrainerTest, WorkersTrainInTheOrderThatTheJobChose) {
  FakePs::Options job = LinearJob(/*workers=*/1);
  v1::DataSpec& data = *job.spec.mutable_data();
  data.mutable_linear()->set_samples(100);  // not a multiple of the batch size
  std::vector<v1::DataSpec> orders(5, data);
  orders[1].set_last_batch(v1::LAST_BATCH_CONTINUE);
  orders[2].mutable_shuffle()->mutable_none();
  orders[3].mutable_shuffle()->mutable_block()->set_lanes(2);
  orders[3].mutable_shuffle()->mutable_block()->set_samples(5);
  for (const double weight : {3, 1}) {
    v1::MixturePart& part = *orders[4].mutable_mixture()->add_parts();
    part.set_weight(weight);
    *part.mutable_data()->mutable_linear() = data.linear();
  }
  std::vector<float> biases;
  for (const v1::DataSpec& order : orders) {
    data = order;
    job.workers = 1;
    const Trained alone = Train(job, 6, /*devices=*/1);
    job.workers = 2;
    ExpectSameParameters(alone, Train(job, 6, /*devices=*/1), 1e-6);
    for (const float bias : biases) EXPECT_NE(alone.parameters[1][0], bias) << "like another order";
    biases.push_back(alone.parameters[1][0]);
  }
}

std::string ContentOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(TrainerTest, AnIndexThatIsKeptDoesNotChangeTheParameters) {
  FakePs::Options job = LinearJob(/*workers=*/2);
  v1::CsvData& csv = *job.spec.mutable_data()->mutable_csv();
  csv.set_path(testing::TempDir() + "/trainer_test.csv");
  std::ofstream lines(csv.path());
  lines << "x,y\n";
  for (int i = 0; i < 100; ++i) lines << i / 50.0 - 1 << "," << i % 7 << "\n";
  lines.close();
  for (const char* name : {"x", "y"}) {
    v1::CsvInput& input = (*csv.mutable_inputs())[name[0] == 'x' ? "input" : "target"];
    input.add_columns(name);
    input.mutable_number();
  }
  const Trained expected = Train(job, 6, /*devices=*/1);
  const std::string folder = testing::TempDir() + "/trainer_test_index";
  std::filesystem::remove_all(folder);

  // Makes the index, then loads it.
  for (int i = 0; i < 2; ++i) ExpectSameParameters(Train(job, 6, 1, folder), expected, 0);
  ASSERT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  const std::string path = std::filesystem::directory_iterator(folder)->path();
  const std::string index = ContentOf(path);

  // Makes it again if it is damaged.
  std::string damaged = index;
  damaged[damaged.size() / 2] ^= 1;
  std::ofstream(path, std::ios::binary) << damaged;
  ExpectSameParameters(Train(job, 6, 1, folder), expected, 0);
  EXPECT_EQ(ContentOf(path), index);

  // The job needs no index folder. In /proc root cannot make a file either.
  ExpectSameParameters(Train(job, 6, 1, "/proc"), expected, 0);
}

TEST(TrainerTest, MicroBatchesDoNotChangeTheParameters) {
  const std::string path = testing::TempDir() + "/trainer_test_micro.txt";
  const Trained whole = Train(TextJob(path, /*workers=*/1), 6, /*devices=*/1);
  for (const int64_t micro_batch_size : {1, 2, 3, 5, 100}) {
    FakePs::Options job = TextJob(path, /*workers=*/1);  // batches of 7: parts of two sizes
    job.spec.mutable_training()->set_micro_batch_size(micro_batch_size);
    const Trained parts = Train(job, 6, /*devices=*/1);
    ExpectSameParameters(whole, parts, 1e-5);
    for (int step = 0; step < 6; ++step) {
      EXPECT_NEAR(LossOf(whole, step), LossOf(parts, step), 1e-5);
      EXPECT_NEAR(whole.reports[0].steps(step).gradient_norm(),
                  parts.reports[0].steps(step).gradient_norm(), 1e-5);
    }
    ASSERT_EQ(parts.reports[0].evaluations_size(), 2);
    for (int i = 0; i < 2; ++i) {
      const v1::EvaluationRecord& expected = whole.reports[0].evaluations(i);
      const v1::EvaluationRecord& evaluated = parts.reports[0].evaluations(i);
      EXPECT_EQ(evaluated.samples(), expected.samples());
      EXPECT_GT(evaluated.time().seconds(), 0);
      EXPECT_NEAR(evaluated.loss_sum() / expected.samples(),
                  expected.loss_sum() / expected.samples(), 1e-5);
      EXPECT_NEAR(evaluated.correct(), expected.correct(), 0.5);
    }
  }
  FakePs::Options shared = TextJob(path, /*workers=*/2);
  shared.spec.mutable_training()->set_micro_batch_size(1);
  ExpectSameParameters(whole, Train(shared, 6, /*devices=*/2), 1e-5);
}

TEST(TrainerTest, LowPrecisionLearnsNearlyTheSame) {
  const std::string path = testing::TempDir() + "/trainer_test_precision.txt";
  const Trained full = Train(TextJob(path, /*workers=*/1), 12, /*devices=*/1);
  for (const v1::Precision precision : {v1::TF32, v1::BF16, v1::FP16}) {
    FakePs::Options job = TextJob(path, /*workers=*/1);
    job.spec.mutable_training()->set_precision(precision);
    if (precision == v1::FP16) {
      job.spec.mutable_training()->mutable_loss_scale()->set_initial(1024);
    }
    const Trained low = Train(job, 12, /*devices=*/1);
    for (int step = 0; step < 12; ++step) {
      EXPECT_NEAR(LossOf(full, step), LossOf(low, step), 0.03) << v1::Precision_Name(precision);
      const v1::StepRecord& record = low.reports[0].steps(step);
      EXPECT_EQ(record.loss_scale(), precision == v1::FP16 ? 1024 : 0);
      EXPECT_FALSE(record.skipped());
      EXPECT_NEAR(record.gradient_norm() / full.reports[0].steps(step).gradient_norm(), 1, 0.05)
          << v1::Precision_Name(precision);
    }
  }
}

// The values arrive in the type that the worker computes with. The result equals that of floats
// that the worker rounds itself.
TEST(TrainerTest, SixteenBitValuesGiveTheSameParameters) {
  const std::string path = testing::TempDir() + "/trainer_test_values.txt";
  for (const v1::Precision precision : {v1::BF16, v1::FP16}) {
    for (const int devices : {1, 2}) {
      FakePs::Options job = TextJob(path, /*workers=*/1);
      job.spec.mutable_training()->set_precision(precision);
      if (precision == v1::FP16) {
        job.spec.mutable_training()->mutable_loss_scale()->set_initial(1024);
      }
      const Trained floats = Train(job, 6, devices);
      job.spec.mutable_sync()->set_values(precision == v1::BF16 ? v1::VALUES_BF16
                                                                : v1::VALUES_FP16);
      const Trained halves = Train(job, 6, devices);
      EXPECT_EQ(halves.parameters, floats.parameters) << v1::Precision_Name(precision);
      for (int step = 0; step < 6; ++step) EXPECT_EQ(LossOf(halves, step), LossOf(floats, step));
      ASSERT_EQ(halves.reports[0].evaluations_size(), floats.reports[0].evaluations_size());
      for (int i = 0; i < floats.reports[0].evaluations_size(); ++i) {
        EXPECT_EQ(halves.reports[0].evaluations(i).loss_sum(),
                  floats.reports[0].evaluations(i).loss_sum());
      }
    }
  }
}

// y = w BatchNorm(x) + b.
FakePs::Options NormalisedLineJob() {
  FakePs::Options job = LinearJob(/*workers=*/1);
  v1::Graph& graph = job.graph;
  auto add = [&](const char* name, double value) -> v1::Parameter& {
    v1::Parameter& parameter = *graph.add_parameters();
    parameter.set_name(name);
    parameter.add_shape(1);
    parameter.mutable_initializer()->set_constant(value);
    return parameter;
  };
  add("mean", 0).set_statistic_momentum(0.25);
  add("variance", 1).set_statistic_momentum(0.25);
  add("shift", 0);
  add("gain", 1);
  v1::Node norm;
  norm.set_name("norm");
  norm.set_op("BatchNorm");
  for (const char* name : {"input", "mean", "variance", "shift", "gain"}) norm.add_inputs(name);
  for (const char* name : {"normalised", "norm.mean", "norm.rstd", "norm.variance", "norm.state"}) {
    norm.add_outputs(name);
  }
  for (v1::Node& node : *graph.mutable_nodes()) {
    for (std::string& input : *node.mutable_inputs()) {
      if (input == "input") input = "normalised";
    }
  }
  graph.add_nodes();
  for (int n = graph.nodes_size() - 1; n > 0; --n) *graph.mutable_nodes(n) = graph.nodes(n - 1);
  *graph.mutable_nodes(0) = norm;
  return job;
}

TEST(TrainerTest, StatisticsMoveTowardsThoseOfTheBatch) {
  FakePs::Options job = NormalisedLineJob();
  const int mean = job.graph.parameters_size() - 4;
  const Trained trained = Train(job, 40, /*devices=*/1);
  // x is uniform in [-1, 1). After 40 steps the initial value has a weight of 0.75^40.
  EXPECT_NEAR(trained.parameters[mean][0], 0, 0.15);
  EXPECT_NEAR(trained.parameters[mean + 1][0], 1 / 3.0, 0.08);
  job.spec.mutable_training()->set_micro_batch_size(16);
  const Trained parts = Train(job, 40, /*devices=*/1);
  EXPECT_NEAR(parts.parameters[mean][0], trained.parameters[mean][0], 1e-5)
      << "the mean of halves is the mean";
}

TEST(TrainerTest, EvaluatesEveryHeldOutSampleOnceWhenDue) {
  const std::string path = testing::TempDir() + "/trainer_test_evaluation.txt";
  const Trained alone = Train(TextJob(path, /*workers=*/1), 6, /*devices=*/1);
  const Trained parts = Train(TextJob(path, /*workers=*/2), 6, /*devices=*/2);
  ASSERT_EQ(alone.reports[0].evaluations_size(), 2);
  for (int i = 0; i < 2; ++i) {
    const v1::EvaluationRecord& whole = alone.reports[0].evaluations(i);
    v1::EvaluationRecord sum;
    for (const v1::JobReport& report : parts.reports) {
      ASSERT_EQ(report.evaluations_size(), 2);
      EXPECT_EQ(report.evaluations(i).step(), i == 0 ? 4 : 6);
      sum.set_samples(sum.samples() + report.evaluations(i).samples());
      sum.set_loss_sum(sum.loss_sum() + report.evaluations(i).loss_sum());
    }
    EXPECT_EQ(whole.step(), i == 0 ? 4 : 6);
    EXPECT_GT(whole.samples(), 7);
    EXPECT_EQ(whole.samples(), sum.samples());
    EXPECT_NEAR(whole.loss_sum() / whole.samples(), sum.loss_sum() / sum.samples(), 1e-5);
    EXPECT_LE(whole.correct(), whole.samples());
  }
}

TEST(TrainerTest, RefusesAJobOfWhichTwoBatchesExceedItsMemory) {
  const std::string path = testing::TempDir() + "/trainer_test_memory.txt";
  FakePs::Options job = TextJob(path, /*workers=*/1);
  job.spec.mutable_data()->set_memory_bytes(1000);
  InProcessNetwork network;
  FakePs ps(network, job);
  Metrics metrics;
  WorkerMetrics worker_metrics(metrics);
  ProgressLog log;
  const absl::Status refused =
      Trainer::Create({.plan = ps.plan(),
                       .devices = {"cpu"},
                       .transport = [&network] { return network.MakeTransport(); },
                       .log = &log,
                       .metrics = &worker_metrics})
          .status();
  EXPECT_EQ(ReasonOf(refused), "MEMORY_EXHAUSTED") << refused;
  EXPECT_TRUE(absl::StartsWith(refused.message(), "data.memory_bytes: two batches need "))
      << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "for held-out samples")) << refused;
}

// Opening reads a file block by block, as indexing does, until the job is released.
TEST(TrainerTest, ReadsOfALongOpeningShowProgressAndEndWithTheJob) {
  constexpr int kReadsBefore = 10;
  const std::string path = testing::TempDir() + "/trainer_test_opening.txt";
  std::ofstream(path) << "text";
  InProcessNetwork network;
  FakePs ps(network, LinearJob(/*workers=*/1));
  Metrics metrics;
  WorkerMetrics worker_metrics(metrics);
  ProgressLog log;
  std::stop_source released;
  int advanced = 0;
  Trainer::Options options{.plan = ps.plan(),
                           .devices = {"cpu"},
                           .transport = [&network] { return network.MakeTransport(); },
                           .log = &log,
                           .metrics = &worker_metrics,
                           .stopping = released.get_token()};
  options.advanced = [&] {
    if (++advanced == kReadsBefore) released.request_stop();
  };
  options.open_data = [&](const v1::DataSpec&, const v1::Graph&,
                          const DataOptions&) -> absl::StatusOr<std::unique_ptr<const Dataset>> {
    ASSIGN_OR_RETURN(const auto file, DataFile::Open(path, "data.test.path"));
    std::byte block[4];
    while (true) RETURN_IF_ERROR(file->Read(0, absl::MakeSpan(block)));
  };
  EXPECT_TRUE(absl::IsCancelled(Trainer::Create(options).status()));
  EXPECT_EQ(advanced, kReadsBefore);
}

TEST(TrainerTest, ReportsWhatReadingSamplesCosts) {
  constexpr int64_t kSteps = 4;
  const FakePs::Options job = TextJob(testing::TempDir() + "/trainer_test_input.txt", 1);
  InProcessNetwork network;
  FakePs ps(network, job);
  Metrics metrics;
  WorkerMetrics worker_metrics(metrics);
  ProgressLog log;
  const auto trainer = Trainer::Create({.plan = ps.plan(),
                                        .devices = {"cpu"},
                                        .transport = [&network] { return network.MakeTransport(); },
                                        .log = &log,
                                        .metrics = &worker_metrics})
                           .value();
  ASSERT_TRUE(trainer->Start(kSteps, {}).ok());
  while (!trainer->done()) ASSERT_TRUE(trainer->Step().ok());
  const v1::InputTiming input = trainer->timing().input();
  const int64_t held_out = trainer->dataset().evaluation_samples();
  EXPECT_GT(held_out, 0);
  EXPECT_GE(input.samples(), kSteps * job.spec.data().batch_size() + held_out);
  EXPECT_EQ(input.threads(), 1);
  EXPECT_GT(input.room_seconds(), 0);
  EXPECT_EQ(worker_metrics.input_samples.Value(), static_cast<double>(input.samples()));
  EXPECT_DOUBLE_EQ(worker_metrics.input_room_seconds.Value(), input.room_seconds());
}

FakePs::Options LocalSgd(FakePs::Options job, int64_t every, int64_t total_steps) {
  job.spec.mutable_sync()->set_mode(v1::LOCAL_SGD);
  job.spec.mutable_sync()->set_every(every);
  job.total_steps = total_steps;
  return job;
}

TEST(TrainerTest, LocalSgdOfOneWorkerIsPlainTraining) {
  const Trained plain = Train(LinearJob(/*workers=*/1), 30, /*devices=*/2);
  const Trained local = Train(LocalSgd(LinearJob(/*workers=*/1), 4, 30), 30, /*devices=*/2);
  ExpectSameParameters(plain, local, 1e-6);
  for (int step = 0; step < 30; ++step) {
    EXPECT_NEAR(LossOf(plain, step), LossOf(local, step), 1e-6);
    EXPECT_NEAR(local.reports[0].steps(step).gradient_norm(),
                plain.reports[0].steps(step).gradient_norm(), 1e-5);
  }
}

TEST(TrainerTest, AveragingAfterEveryStepOfSgdIsPlainTraining) {
  const Trained plain = Train(LinearJob(/*workers=*/2), 30, /*devices=*/1);
  const Trained local = Train(LocalSgd(LinearJob(/*workers=*/2), 1, 30), 30, /*devices=*/1);
  ExpectSameParameters(plain, local, 1e-5);
}

TEST(TrainerTest, LocalSgdWithTwoWorkersLearnsALine) {
  const Trained trained = Train(LocalSgd(LinearJob(/*workers=*/2), 4, 202), 202, /*devices=*/1);
  EXPECT_NEAR(trained.parameters[0][0], 3, 0.03);
  EXPECT_NEAR(trained.parameters[1][0], -0.5, 0.005);
  for (const v1::JobReport& report : trained.reports) EXPECT_EQ(report.steps_size(), 202);
}

// Trains a job with a backup worker to its end, on a worker with two devices. Before the worker
// computes step `step`, the other workers reach `version`.
struct Overtaken {
  Overtaken(const FakePs::Options& job, int64_t step, int64_t version, int64_t total_steps) {
    InProcessNetwork network;
    FakePs ps(network, job);
    Metrics metrics;
    WorkerMetrics worker_metrics(metrics);
    ProgressLog log;
    auto trainer = Trainer::Create({.plan = ps.plan(),
                                    .devices = {"cpu", "cpu"},
                                    .transport = [&network] { return network.MakeTransport(); },
                                    .log = &log,
                                    .metrics = &worker_metrics})
                       .value();
    EXPECT_TRUE(trainer->Start(total_steps, {}).ok());
    for (int64_t s = 0; s < step; ++s) EXPECT_TRUE(trainer->Step().ok());
    for (int s = 0; s < ps.plan()->shards_size(); ++s) {
      const int64_t of_shard = std::ranges::count(ps.plan()->chunks(), s, &v1::PlanChunk::shard);
      ps.shard(s).AwaitPushes(step * of_shard);
      ps.shard(s).Overtake(version);
    }
    for (absl::Status status; status.ok() && !trainer->done();) {
      status = trainer->Step();
      EXPECT_TRUE(status.ok()) << status;
    }
    EXPECT_EQ(trainer->next_step(), total_steps);
    log.AddTo(report);
    missed_steps = worker_metrics.missed_steps.Value();
    chunks = ps.plan()->chunks_size();
    for (int s = 0; s < ps.plan()->shards_size(); ++s) late_pushes += ps.shard(s).late_pushes();
  }

  v1::JobReport report;
  double missed_steps = 0;
  int64_t chunks = 0, late_pushes = 0;
};

TEST(TrainerTest, AnOvertakenWorkerContinuesAtTheVersionOfTheOthersAndRecordsMissedSteps) {
  FakePs::Options job = TextJob(testing::TempDir() + "/trainer_test_overtaken.txt", /*workers=*/1);
  job.spec.mutable_sync()->set_backup_workers(1);
  const Overtaken overtaken(job, /*step=*/5, /*version=*/9, /*total_steps=*/12);

  const v1::JobReport& report = overtaken.report;
  ASSERT_EQ(report.steps_size(), 12);
  for (int step = 0; step < 12; ++step) {
    const v1::StepRecord& record = report.steps(step);
    EXPECT_EQ(record.step(), step);
    EXPECT_EQ(record.missed(), step >= 6 && step < 9) << step;
    EXPECT_EQ(record.loss_share() > 0, !record.missed()) << step;
    EXPECT_EQ(std::isnan(record.gradient_norm()), step == 5) << step;
  }
  ASSERT_EQ(report.evaluations_size(), 3);
  EXPECT_GT(report.evaluations(0).samples(), 0);
  EXPECT_EQ(report.evaluations(1).step(), 8);
  EXPECT_EQ(report.evaluations(1).samples(), 0) << "it never had that version";
  EXPECT_EQ(report.evaluations(2).step(), 12);
  EXPECT_GT(report.evaluations(2).samples(), 0);
  EXPECT_EQ(overtaken.missed_steps, 3);
}

// The answers to its first gradients tell a worker that it was overtaken, while its devices still
// reduce the last ones. It sends those before it catches up.
TEST(TrainerTest, AnOvertakenWorkerSendsAllGradientsBeforeADueEvaluation) {
  FakePs::Options job = TextJob(testing::TempDir() + "/trainer_test_last.txt", /*workers=*/1);
  auto& arguments = *job.spec.mutable_model()->mutable_zoo()->mutable_args()->mutable_fields();
  arguments["channels"].set_number_value(384);  // two buckets
  job.graph = BuildModel(job.spec.model()).value();
  job.spec.mutable_sync()->set_backup_workers(1);
  for (int round = 0; round < 3; ++round) {  // it is a race, so try it several times
    const Overtaken overtaken(job, /*step=*/3, /*version=*/5, /*total_steps=*/6);
    EXPECT_EQ(overtaken.late_pushes, overtaken.chunks);
    EXPECT_EQ(overtaken.missed_steps, 1);
    EXPECT_GT(overtaken.report.evaluations_size(), 0) << "nothing is held out";
  }
}

// One device may be told of it while the other one waits in a norm. Errors of the norms' group are
// final, so the following steps need a new one.
TEST(TrainerTest, AnOvertakenWorkerKeepsItsSynchronisedNorms) {
  FakePs::Options job = NormalisedLineJob();
  (*job.graph.mutable_nodes(0)->mutable_attributes())["synchronised"].set_i(1);
  job.spec.mutable_sync()->set_backup_workers(1);
  for (int round = 0; round < 5; ++round) {  // it is a race, so try it several times
    const Overtaken overtaken(job, /*step=*/5, /*version=*/9, /*total_steps=*/12);
    EXPECT_EQ(overtaken.missed_steps, 3);
    EXPECT_EQ(overtaken.report.steps_size(), 12);
  }
}

// One rank may be told of it while the other one waits in a sum. The evaluation after it needs a
// new group, too.
TEST(TrainerTest, AnOvertakenWorkerKeepsItsRanks) {
  FakePs::Options job = TextJob(testing::TempDir() + "/trainer_test_ranks.txt", /*workers=*/1);
  job.spec.mutable_sync()->set_backup_workers(1);
  job.spec.mutable_training()->set_evaluate_every_steps(1);
  job.spec.mutable_resources()->set_tensor_parallel(2);
  for (int round = 0; round < 5; ++round) {  // it is a race, so try it several times
    const Overtaken overtaken(job, /*step=*/5, /*version=*/9, /*total_steps=*/12);
    EXPECT_EQ(overtaken.missed_steps, 3);
    EXPECT_EQ(overtaken.report.steps_size(), 12);
    EXPECT_GT(overtaken.report.evaluations(overtaken.report.evaluations_size() - 1).samples(), 0);
  }
}

// Collects the warnings that are logged while it exists.
class WarningLog : public google::LogSink {
 public:
  WarningLog() { google::AddLogSink(this); }
  ~WarningLog() override { google::RemoveLogSink(this); }

  void send(google::LogSeverity severity, const char*, const char*, int,
            const google::LogMessageTime&, const char* message, size_t bytes) override {
    if (severity == google::GLOG_WARNING) warnings_.emplace_back(message, bytes);
  }

  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  std::vector<std::string> warnings_;
};

// Why and at which step a worker stopped.
struct Stop {
  absl::Status why;
  int64_t step = 0;
  v1::JobReport report;
};

// Trains with all workers of the job until each fails or is done. Returns the results by rank.
std::vector<Stop> TrainUntilAllStop(const FakePs::Options& options) {
  InProcessNetwork network;
  FakePs ps(network, options);
  std::vector<Stop> stops(options.workers);
  auto work = [&](int rank) {
    Metrics metrics;
    WorkerMetrics worker_metrics(metrics);
    ProgressLog log;
    auto trainer = Trainer::Create({.plan = ps.plan(),
                                    .rank = Rank(rank),
                                    .devices = {"cpu"},
                                    .transport = [&network] { return network.MakeTransport(); },
                                    .log = &log,
                                    .metrics = &worker_metrics})
                       .value();
    Stop& stop = stops[rank];
    stop.why = trainer->Start(/*total_steps=*/50, {});
    while (stop.why.ok() && !trainer->done()) stop.why = trainer->Step();
    stop.step = trainer->failed_step();
    if (!stop.why.ok()) trainer->GiveUp().IgnoreError();
    log.AddTo(stop.report);
  };
  {
    std::vector<std::jthread> workers;
    for (int rank = 0; rank < options.workers; ++rank) workers.emplace_back(work, rank);
  }
  return stops;
}

Stop TrainUntilItStops(const FakePs::Options& options) { return TrainUntilAllStop(options)[0]; }

// Returns an .npy file of i32[samples, columns] with all values 1.
std::string OnesInNpy(int64_t samples, int64_t columns) {
  std::string header = absl::StrCat("{'descr': '<i4', 'fortran_order': False, 'shape': (", samples,
                                    ", ", columns, "), }");
  header.resize(117, ' ');
  const std::vector<int32_t> values(samples * columns, 1);
  return absl::StrCat("\x93NUMPY\x01", std::string("\0\x76\0", 3), header, "\n") +
         std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size());
}

// The other device has the step's rows and waits for values that never arrive.
TEST(TrainerTest, AFailureOfOneDeviceEndsTheWaitsOfTheOthersAndIsReported) {
  constexpr int64_t kSamples = 8, kContext = 16, kBadStep = 1;
  FakePs::Options job = TextJob(testing::TempDir() + "/trainer_test_bad.txt", /*workers=*/1);
  v1::ParameterGroup& group = *job.spec.mutable_training()->add_parameter_groups();
  group.add_match("token_embedding*");
  group.set_frozen(true);
  v1::DataSpec& data = *job.spec.mutable_data();
  data.set_batch_size(2);  // a sample for each device
  const std::string ids = testing::TempDir() + "/trainer_test_bad.npy";
  std::ofstream(ids, std::ios::binary) << OnesInNpy(kSamples, kContext);
  for (const v1::GraphInput& input : job.graph.inputs()) {
    (*data.mutable_npy()->mutable_inputs())[input.name()] = ids;
  }
  InProcessNetwork network;
  FakePs ps(network, job);
  network.SetFault([](const WireHeader& header) {
    return header.kind == MessageKind::kParams && header.step == kBadStep
               ? InProcessNetwork::Fate::kDrop
               : InProcessNetwork::Fate::kDeliver;
  });
  Metrics metrics;
  WorkerMetrics worker_metrics(metrics);
  ProgressLog log;
  auto trainer = Trainer::Create({.plan = ps.plan(),
                                  .devices = {"cpu", "cpu"},
                                  .transport = [&network] { return network.MakeTransport(); },
                                  .log = &log,
                                  .metrics = &worker_metrics})
                     .value();
  // Changes the file after Create() has checked its ids.
  const int64_t bad = SampleOrder::Full(data.seed(), kSamples, data.batch_size())
                          .SamplesOfStep(kBadStep,
                                         /*first_position=*/1, /*count=*/1)[0]
                          .sample;
  std::fstream file(ids, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(128 + 4 * kContext * bad + 3);
  file.put(1).flush();  // 1 + 2^24
  ASSERT_TRUE(trainer->Start(/*total_steps=*/4, {}).ok());
  ASSERT_TRUE(trainer->Step().ok());

  const absl::Status failed = trainer->Step();

  EXPECT_TRUE(absl::IsInvalidArgument(failed)) << failed;
  EXPECT_NE(failed.message().find("id 16777217"), std::string::npos) << failed;
  EXPECT_EQ(trainer->failed_step(), kBadStep);
  network.SetFault(nullptr);
}

// Fails to read one sample.
class Unreadable : public Dataset {
 public:
  Unreadable(std::unique_ptr<const Dataset> data, int64_t sample)
      : data_(std::move(data)), sample_(sample) {}

  int64_t samples() const override { return data_->samples(); }
  int64_t evaluation_samples() const override { return data_->evaluation_samples(); }
  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    for (const SampleRef& ref : samples) {
      if (ref.sample == sample_) {
        return WithReason(absl::UnavailableError("data.test: the disk fails"), "DATA_UNREADABLE");
      }
    }
    return data_->Read(samples, rows);
  }
  absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const override {
    return data_->ReadEvaluation(first, count, rows);
  }

 private:
  const std::unique_ptr<const Dataset> data_;
  const int64_t sample_;
};

TEST(TrainerTest, SamplesThatCannotBeReadStopTheJobAtTheirStep) {
  constexpr int64_t kBadStep = 6;
  const FakePs::Options job = LinearJob(/*workers=*/1);
  const v1::DataSpec& data = job.spec.data();
  InProcessNetwork network;
  FakePs ps(network, job);
  Metrics metrics;
  WorkerMetrics worker_metrics(metrics);
  ProgressLog log;
  Trainer::Options options{.plan = ps.plan(),
                           .devices = {"cpu"},
                           .transport = [&network] { return network.MakeTransport(); },
                           .log = &log,
                           .metrics = &worker_metrics};
  options.open_data =
      [&data](const v1::DataSpec& spec, const v1::Graph& graph,
              const DataOptions& options) -> absl::StatusOr<std::unique_ptr<const Dataset>> {
    auto opened = OpenDataset(spec, graph, options).value();
    const int64_t bad = SampleOrder::Full(data.seed(), opened->samples(), data.batch_size())
                            .SamplesOfStep(kBadStep, /*first_position=*/3, /*count=*/1)[0]
                            .sample;
    return std::make_unique<Unreadable>(std::move(opened), bad);
  };
  const auto trainer = Trainer::Create(std::move(options)).value();
  absl::Status status = trainer->Start(/*total_steps=*/50, {});
  while (status.ok() && !trainer->done()) status = trainer->Step();

  EXPECT_EQ(ReasonOf(status), "DATA_UNREADABLE") << status;
  EXPECT_EQ(trainer->failed_step(), kBadStep);
  EXPECT_TRUE(trainer->GiveUp().ok());
  v1::JobReport report;
  log.AddTo(report);
  EXPECT_EQ(report.steps_size(), kBadStep) << "the steps before are recorded";
}

// Returns an .npy file of f32[values, 1].
std::string FloatsInNpy(const std::vector<float>& values) {
  std::string header =
      absl::StrCat("{'descr': '<f4', 'fortran_order': False, 'shape': (", values.size(), ", 1), }");
  header.resize(117, ' ');
  return absl::StrCat("\x93NUMPY\x01", std::string("\0\x76\0", 3), header, "\n") +
         std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size());
}

// Writes `inputs` and `targets` to .npy files and makes the job read them. Returns the path of the
// inputs.
std::string ReadFromNpy(FakePs::Options& job, const std::string& name,
                        const std::vector<float>& inputs, const std::vector<float>& targets) {
  auto& paths = *job.spec.mutable_data()->mutable_npy()->mutable_inputs();
  const std::string stem = absl::StrCat(testing::TempDir(), "/trainer_test_", name);
  paths["input"] = stem + "_input.npy";
  paths["target"] = stem + "_target.npy";
  std::ofstream(paths["input"], std::ios::binary) << FloatsInNpy(inputs);
  std::ofstream(paths["target"], std::ios::binary) << FloatsInNpy(targets);
  return paths["input"];
}

std::vector<float> Ramp(int count) {
  std::vector<float> values(count);
  for (int i = 0; i < count; ++i) values[i] = static_cast<float>(i) / static_cast<float>(count);
  return values;
}

TEST(TrainerTest, ANonFiniteInputStopsTheJobAndTheErrorNamesItsRow) {
  constexpr int kSamples = 64, kBatch = 4;
  FakePs::Options poisoned = LinearJob(/*workers=*/1);
  v1::DataSpec& data = *poisoned.spec.mutable_data();
  data.set_batch_size(kBatch);
  const int64_t row = SampleOrder::Full(data.seed(), kSamples, kBatch)
                          .SamplesOfStep(/*step=*/2,
                                         /*first_position=*/1, /*count=*/1)[0]
                          .sample;
  std::vector<float> inputs = Ramp(kSamples);
  inputs[row] = std::nanf("");
  const std::string path = ReadFromNpy(poisoned, "nan", inputs, Ramp(kSamples));

  const Stop stop = TrainUntilItStops(poisoned);

  EXPECT_EQ(ReasonOf(stop.why), "DATA_NOT_FINITE") << stop.why;
  EXPECT_EQ(stop.step, 2);
  EXPECT_EQ(stop.why.message(), absl::StrCat("the loss of step 2 is nan: input 'input' has a NaN ",
                                             "in row ", row, " of ", path));
}

// The worker's own samples are finite, but the norm of the gradient is that of the whole batch.
TEST(TrainerTest, NamesARowOfAnotherWorkersShare) {
  constexpr int kSamples = 64, kBatch = 4;
  FakePs::Options poisoned = LinearJob(/*workers=*/2);
  v1::DataSpec& data = *poisoned.spec.mutable_data();
  data.set_batch_size(kBatch);
  const int64_t row = SampleOrder::Full(data.seed(), kSamples, kBatch)
                          .SamplesOfStep(/*step=*/1,
                                         /*first_position=*/kBatch - 1, /*count=*/1)[0]
                          .sample;
  std::vector<float> inputs = Ramp(kSamples);
  inputs[row] = std::nanf("");
  const std::string path = ReadFromNpy(poisoned, "share", inputs, Ramp(kSamples));

  for (const Stop& stop : TrainUntilAllStop(poisoned)) {
    EXPECT_EQ(ReasonOf(stop.why), "DATA_NOT_FINITE") << stop.why;
    EXPECT_EQ(stop.step, 1);
    EXPECT_TRUE(absl::EndsWith(stop.why.message(),
                               absl::StrCat("input 'input' has a NaN in row ", row, " of ", path)))
        << stop.why;
  }
}

TEST(TrainerTest, ANonFiniteGradientStopsTheJobAndTheErrorNamesStepParameterAndGroup) {
  FakePs::Options diverging = LinearJob(/*workers=*/1);
  v1::TrainingSpec& training = *diverging.spec.mutable_training();
  training.add_parameter_groups()->add_match("no such");
  training.add_parameter_groups()->add_match("*");
  // The error of each sample is finite. Its square, and the sum of the squares, are not.
  ReadFromNpy(diverging, "gradient", std::vector<float>(64, 3e38f), std::vector<float>(64, 3e38f));

  const Stop stop = TrainUntilItStops(diverging);

  EXPECT_EQ(ReasonOf(stop.why), "LOSS_NOT_FINITE") << stop.why;
  EXPECT_EQ(stop.step, 0);
  EXPECT_EQ(stop.why.message(),
            absl::StrCat("the loss of step 0 is inf; the gradients of 1 of 2 parameters are not "
                         "finite, the first is that of '",
                         diverging.graph.parameters(0).name(), "' (training.parameter_groups[1])"));
}

TEST(TrainerTest, NamesANonFiniteStatistic) {
  FakePs::Options job = LinearJob(/*workers=*/1);
  job.graph = ParseGraph(R"(
    input input f32[-1, 1]
    input target f32[-1, 1]
    statistic mean [1]
    statistic variance [1]
    parameter bias [1]
    y, m, r, v, state = BatchNorm(input, mean, variance, bias)
    l = MeanSquaredError(y, target)
    loss l)");
  // The square of 1e25 is infinite, and the normalized value is 1.
  std::vector<float> inputs(64);
  for (int i = 0; i < 64; ++i) inputs[i] = i % 2 == 0 ? 1e25f : -1e25f;
  ReadFromNpy(job, "statistic", inputs, Ramp(64));

  const Stop stop = TrainUntilItStops(job);

  EXPECT_EQ(ReasonOf(stop.why), "LOSS_NOT_FINITE") << stop.why;
  EXPECT_TRUE(absl::EndsWith(stop.why.message(),
                             "; the running statistic 'variance' is not finite, every gradient is"))
      << stop.why;
}

TEST(TrainerTest, NamesAValueThatIsNoLongerFinite) {
  FakePs::Options diverging = LinearJob(/*workers=*/1);
  diverging.spec.mutable_training()->mutable_optimizer()->mutable_sgd()->set_learning_rate(1e30);

  const Stop stop = TrainUntilItStops(diverging);

  EXPECT_EQ(
      stop.why.message(),
      absl::StrCat("the loss of step 1 is inf; its gradient is finite, but the value of "
                   "parameter '",
                   diverging.graph.parameters(0).name(), "' (of no parameter group) no longer is"));
}

TEST(TrainerTest, ANonFiniteLossStopsTheJobUnlessItIgnoresThem) {
  FakePs::Options diverging = LinearJob(/*workers=*/1);
  diverging.spec.mutable_training()->mutable_optimizer()->mutable_sgd()->set_learning_rate(1e10);

  const Stop stop = TrainUntilItStops(diverging);

  EXPECT_EQ(ReasonOf(stop.why), "LOSS_NOT_FINITE") << stop.why;
  EXPECT_EQ(stop.why.message(), absl::StrCat("the loss of step ", stop.step,
                                             " is inf; every element of its gradient is finite"));
  ASSERT_GT(stop.step, 0);
  ASSERT_EQ(stop.report.steps_size(), stop.step + 1) << "no later step is recorded";
  EXPECT_TRUE(std::isfinite(stop.report.steps(static_cast<int>(stop.step) - 1).loss_share()));

  diverging.spec.set_on_non_finite(v1::NON_FINITE_ROLLBACK);
  const Stop again = TrainUntilItStops(diverging);
  EXPECT_EQ(again.step, stop.step);
  EXPECT_EQ(again.report.steps_size(), stop.step) << "the step runs again";

  diverging.spec.set_on_non_finite(v1::NON_FINITE_IGNORE);
  EXPECT_TRUE(TrainUntilItStops(diverging).why.ok());
}

// A judged step is skipped if its loss or gradient is not finite.
TEST(TrainerTest, ASkippedStepDoesNotStopTheJob) {
  FakePs::Options diverging = LinearJob(/*workers=*/1);
  diverging.spec.mutable_training()->mutable_optimizer()->mutable_sgd()->set_learning_rate(1e10);
  diverging.spec.mutable_training()->mutable_clip()->set_global_norm(1e30);
  EXPECT_TRUE(TrainUntilItStops(diverging).why.ok());
}

TEST(TrainerTest, WarnsOnceOfAnIgnoredNonFiniteLoss) {
  FakePs::Options diverging = LinearJob(/*workers=*/1);
  diverging.spec.set_on_non_finite(v1::NON_FINITE_IGNORE);
  diverging.spec.mutable_training()->mutable_optimizer()->mutable_sgd()->set_learning_rate(1e30);
  WarningLog log;

  const Trained trained = Train(diverging, 8, /*devices=*/1);

  int step = 0;
  while (step < 8 && std::isfinite(LossOf(trained, step))) ++step;
  ASSERT_LT(step, 7);
  ASSERT_EQ(log.warnings().size(), 1);
  EXPECT_NE(log.warnings()[0].find("the loss of step " + std::to_string(step) + " is "),
            std::string::npos)
      << log.warnings()[0];
}

// One job ignores the loss, the other skips such steps.
TEST(TrainerTest, LogNamesTheInputIfItsLossDoesNotStopTheJob) {
  std::vector<float> inputs = Ramp(64);
  inputs[5] = std::nanf("");
  FakePs::Options ignoring = LinearJob(/*workers=*/1);
  ignoring.spec.set_on_non_finite(v1::NON_FINITE_IGNORE);
  FakePs::Options skipping = LinearJob(/*workers=*/1);
  skipping.spec.mutable_training()->mutable_clip()->set_global_norm(1);
  for (FakePs::Options* job : {&ignoring, &skipping}) {
    const std::string path = ReadFromNpy(*job, "ignored", inputs, Ramp(64));
    WarningLog log;

    Train(*job, 8, /*devices=*/1);

    ASSERT_EQ(log.warnings().size(), 1);
    EXPECT_TRUE(absl::EndsWith(log.warnings()[0],
                               absl::StrCat(" is nan: input 'input' has a NaN in row 5 of ", path,
                                            "; later ones are not logged. Correct that row.")))
        << log.warnings()[0];
  }
}

TEST(TrainerTest, LogNamesANonFiniteHeldOutInputOnce) {
  std::vector<float> inputs = Ramp(64);
  inputs[60] = std::nanf("");  // in the last quarter, which is held out
  FakePs::Options job = LinearJob(/*workers=*/1);
  const std::string path = ReadFromNpy(job, "held_out", inputs, Ramp(64));
  job.spec.mutable_data()->mutable_npy()->set_holdout(0.25);
  job.spec.mutable_training()->set_evaluate_every_steps(2);
  WarningLog log;

  Train(job, 8, /*devices=*/1);

  ASSERT_EQ(log.warnings().size(), 1);
  EXPECT_TRUE(absl::EndsWith(log.warnings()[0],
                             absl::StrCat(": the loss of the evaluation after step 2 is not "
                                          "finite: input 'input' has a NaN in row 60 of ",
                                          path, "; later ones are not logged. Correct that row.")))
      << log.warnings()[0];
}

}  // namespace
}  // namespace muster::trainer_test
