// Steps that all shards of a job apply or skip together: fp16 and clipping by global norm.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/inprocess_transport.h"
#include "services/ps/fake_peers.h"
#include "services/ps/memory_budget.h"
#include "services/ps/ps_metrics.h"
#include "services/ps/shard_thread.h"
#include "services/ps/test_plan.h"

namespace muster {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Element i of parameter p's gradient of `rank` at `step`.
using GradientOf = std::function<float(int64_t step, int rank, int p, int64_t i)>;

float Wavy(int64_t step, int rank, int p, int64_t i) {
  return std::sin(static_cast<float>(3 * step + 7 * rank + 11 * p) + 0.37f * static_cast<float>(i));
}

// One job on shard threads that talk to each other; its workers are the test's thread.
class JudgedJob {
 public:
  explicit JudgedJob(const v1::JobPlan& plan) : plan_(plan) {
    for (int shard = 0; shard < plan_.shards_size(); ++shard) {
      threads_.push_back(*ShardThread::Start(
          [this]() -> absl::StatusOr<std::unique_ptr<Transport>> {
            return network_.MakeTransport();
          },
          &ps_metrics_));
      plan_.mutable_shards(shard)->set_address(threads_[shard]->address());
    }
    progress_ = std::vector<ShardProgress>(plan_.shards_size());
    for (int number = 0; number < plan_.shards_size(); ++number) {
      auto shard = *ParameterShard::Create(
          std::make_shared<v1::JobPlan>(plan_), number,
          *budget_.Reserve(ParameterShard::BytesNeeded(plan_, number), absl::ZeroDuration()));
      for (int i = 0; i < shard->chunk_count(); ++i) shard->Initialize(i);
      threads_[number]->Install(std::move(shard), &listener_, &progress_[number]);
    }
    listener_.AwaitInstalled(plan_.shards_size());
    for (int rank = 0; rank < plan_.workers_size(); ++rank) {
      for (int shard = 0; shard < plan_.shards_size(); ++shard) {
        workers_.push_back(std::make_unique<FakeWorker>(&network_, plan_, rank));
        workers_.back()->Greet(threads_[shard]->address());
      }
    }
    for (auto& thread : threads_) {
      thread->StartJob(plan_.job_number(), plan_.generation(), /*total_steps=*/1000);
    }
  }

  // Runs one step and keeps what rank 0 is answered.
  void Step(int64_t step, const GradientOf& gradient_of) {
    for (int rank = plan_.workers_size() - 1; rank >= 0; --rank) {
      for (int chunk = 0; chunk < plan_.chunks_size(); ++chunk) {
        const v1::PlanChunk& cut = plan_.chunks(chunk);
        Values gradient;
        for (int64_t i = 0; i < cut.elements(); ++i) {
          gradient.push_back(gradient_of(step, rank, cut.parameter(), cut.offset() + i));
        }
        Worker(rank, cut.shard()).Push(step, chunk, gradient);
      }
    }
    values_.assign(plan_.graph().parameters_size(), {});
    for (size_t p = 0; p < values_.size(); ++p) {
      values_[p].resize(plan_.graph().parameters(static_cast<int>(p)).shape(0));
    }
    squares_ = 0;
    for (int rank = plan_.workers_size() - 1; rank >= 0; --rank) {
      for (int chunk = 0; chunk < plan_.chunks_size(); ++chunk) {
        const FakeWorker::Message answer = Worker(rank, plan_.chunks(chunk).shard()).Receive();
        ASSERT_EQ(answer.header.kind, MessageKind::kParams);
        ASSERT_EQ(answer.header.step, step + 1);
        const v1::PlanChunk& cut = plan_.chunks(static_cast<int>(answer.header.chunk));
        std::memcpy(&values_[cut.parameter()][cut.offset()], answer.payload.data(),
                    answer.payload.size() * sizeof(float));
        loss_scale_ = answer.header.loss_scale;
        if (rank == 0) squares_ += answer.header.scalar;
      }
    }
  }

  std::shared_ptr<const ShardSnapshot> Snapshot(int shard, int64_t step) {
    threads_[shard]->TakeSnapshot(plan_.job_number(), plan_.generation(), 99, step);
    return listener_.AwaitSnapshot();
  }

  const v1::JobPlan& plan() const { return plan_; }
  // By parameter, after the last step.
  const std::vector<Values>& values() const { return values_; }
  float loss_scale() const { return loss_scale_; }
  double squares() const { return squares_; }
  double skipped() { return ps_metrics_.skipped_steps.Value(); }
  const ShardProgress& progress(int shard) const { return progress_[shard]; }
  double refused(RefusalReason reason) { return ps_metrics_.refused(reason).Value(); }
  FakeWorker& Worker(int rank, int shard) { return *workers_[rank * plan_.shards_size() + shard]; }

 private:
  v1::JobPlan plan_;
  Metrics metrics_;
  PsMetrics ps_metrics_{metrics_};
  MemoryBudget budget_{1 << 24};
  InProcessNetwork network_;
  FakeListener listener_;
  std::vector<ShardProgress> progress_;
  std::vector<std::unique_ptr<ShardThread>> threads_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;  // [rank, shard]
  std::vector<Values> values_;
  float loss_scale_ = 0;
  double squares_ = 0;
};

TestPlanOptions Adam(int shards) {
  TestPlanOptions options{.parameters = {700, 5, 333}, .chunk_bytes = 512, .shards = shards};
  options.optimizer.mutable_adam()->set_learning_rate(0.01);
  return options;
}

TEST(JudgedStepsTest, AnOverflowOnOneWorkerSkipsTheStepOnEveryShard) {
  for (int shards : {1, 2, 3}) {
    TestPlanOptions options = Adam(shards);
    options.precision = v1::FP16;
    JudgedJob job(MakeTestPlan(options)), without(MakeTestPlan(options));
    std::vector<Values> before;
    int64_t applied = 0;
    for (int64_t step = 0; step < 10; ++step) {
      const bool overflow = step == 5;
      job.Step(step, [&](int64_t s, int rank, int p, int64_t i) {
        return overflow && rank == 1 && p == 2 && i == 300 ? kInfinity : Wavy(s, rank, p, i);
      });
      if (overflow) {
        EXPECT_EQ(job.values(), before);
        EXPECT_FALSE(std::isfinite(job.squares()));
        EXPECT_EQ(job.loss_scale(), 32768);
        EXPECT_EQ(job.skipped(), 1);
        for (int shard = 0; shard < shards; ++shard) {
          EXPECT_EQ(job.progress(shard).skips_in_row, 1);
        }
        continue;
      }
      before = job.values();
      // The same gradients in a job that never had the step: the optimizer has counted alike.
      without.Step(applied++,
                   [&](int64_t, int rank, int p, int64_t i) { return Wavy(step, rank, p, i); });
      EXPECT_EQ(job.values(), without.values()) << "step " << step << ", shards " << shards;
      EXPECT_EQ(job.loss_scale(), step < 5 ? 65536 : 32768);
    }
    EXPECT_EQ(job.progress(0).skips_in_row, 0);
    EXPECT_EQ(job.skipped(), 1);
    EXPECT_EQ(without.loss_scale(), 65536);
  }
}

TEST(JudgedStepsTest, TheLossScaleGrowsAndFallsToItsFloor) {
  TestPlanOptions options = Adam(2);
  options.precision = v1::FP16;
  v1::JobPlan plan = MakeTestPlan(options);
  plan.mutable_spec()->mutable_training()->mutable_loss_scale()->set_initial(4);
  plan.mutable_spec()->mutable_training()->mutable_loss_scale()->set_growth_steps(2);
  JudgedJob job(plan);
  std::vector<float> scales;
  for (int64_t step = 0; step < 9; ++step) {
    job.Step(step, [](int64_t s, int rank, int p, int64_t i) {
      return s >= 4 && s < 8 ? std::nanf("") : Wavy(s, rank, p, i);
    });
    scales.push_back(job.loss_scale());
    EXPECT_EQ(job.progress(0).skips_in_row, step >= 4 && step < 8 ? step - 3 : 0);
  }
  EXPECT_EQ(scales, (std::vector<float>{4, 8, 8, 16, 8, 4, 2, 1, 1}));
}

TEST(JudgedStepsTest, ClippingByGlobalNormEqualsADoublePrecisionReference) {
  TestPlanOptions options{.parameters = {700, 5, 333}, .chunk_bytes = 512, .clip_norm = 2.5};
  JudgedJob job(MakeTestPlan(options));
  for (int64_t step = 0; step < 3; ++step) {
    const double size = step == 1 ? 1e-3 : 1;  // the second is not clipped
    const auto gradient = [&](int64_t s, int rank, int p, int64_t i) {
      return static_cast<float>(size) * Wavy(s, rank, p, i);
    };
    const std::vector<Values> before = job.values();
    job.Step(step, gradient);
    double squares = 0;
    auto sum = [&](int p, int64_t i) {
      return double{gradient(step, 0, p, i)} + double{gradient(step, 1, p, i)};
    };
    for (int p = 0; p < 3; ++p) {
      for (int64_t i = 0; i < options.parameters[p]; ++i) squares += sum(p, i) * sum(p, i);
    }
    const double factor = std::min(1.0, 2.5 / std::sqrt(squares));
    EXPECT_EQ(factor < 1, step != 1);
    EXPECT_NEAR(job.squares(), squares, 1e-6 * squares);
    if (before.empty()) continue;
    for (int p = 0; p < 3; ++p) {
      for (int64_t i = 0; i < options.parameters[p]; ++i) {
        EXPECT_NEAR(job.values()[p][i], before[p][i] - 0.5 * factor * sum(p, i), 1e-6);
      }
    }
  }
}

TEST(JudgedStepsTest, TheNumberOfShardsDoesNotChangeABit) {
  std::vector<Values> expected;
  for (int shards : {1, 2, 3, 30}) {  // more shards than chunks
    TestPlanOptions options = Adam(shards);
    options.parameters = {700, 5, 333};
    options.clip_norm = 0.7;
    JudgedJob job(MakeTestPlan(options));
    for (int64_t step = 0; step < 5; ++step) job.Step(step, Wavy);
    if (expected.empty()) expected = job.values();
    EXPECT_EQ(job.values(), expected) << shards;
    EXPECT_EQ(job.loss_scale(), 0) << "an fp32 job has none";
  }
}

TEST(JudgedStepsTest, AStatisticIsNoPartOfTheNormAndMovesTowardsTheContribution) {
  TestPlanOptions options{.parameters = {40, 6}, .shards = 2, .clip_norm = 1e9};
  v1::JobPlan plan = MakeTestPlan(options);
  plan.mutable_graph()->mutable_parameters(1)->set_statistic_momentum(0.1);
  plan.mutable_graph()->mutable_parameters(1)->mutable_initializer()->set_constant(2);
  JudgedJob job(plan);
  auto gradient = [](int64_t, int, int p, int64_t) { return p == 1 ? 500.0f : 0.5f; };
  job.Step(0, gradient);
  EXPECT_EQ(job.squares(), 40);
  EXPECT_FLOAT_EQ(job.values()[1][3], 2 + 0.1 * (1000 - 2));
  const std::vector<Values> before = job.values();
  job.Step(1, [&](int64_t s, int rank, int p, int64_t i) {
    return p == 1 && i == 0 ? kInfinity : gradient(s, rank, p, i);
  });
  EXPECT_EQ(job.values(), before) << "one that is not finite skips the step";
  job.Step(2, gradient);
  EXPECT_FLOAT_EQ(job.values()[1][3], before[1][3] + 0.1 * (1000 - before[1][3]));
}

TEST(JudgedStepsTest, ASnapshotHoldsTheStateOfItsVersion) {
  TestPlanOptions options = Adam(2);
  options.precision = v1::FP16;
  JudgedJob job(MakeTestPlan(options));
  for (int64_t step = 0; step < 4; ++step) {
    job.Step(step, [](int64_t s, int rank, int p, int64_t i) {
      return s == 1 ? kInfinity : Wavy(s, rank, p, i);
    });
  }
  for (int shard : {0, 1}) {
    const auto snapshot = job.Snapshot(shard, 4);
    ASSERT_NE(snapshot, nullptr);
    EXPECT_EQ(snapshot->update_state.updates(), 3);
    EXPECT_EQ(snapshot->update_state.loss_scale(), 32768);
    EXPECT_EQ(snapshot->update_state.clean_steps(), 2);
  }
}

TEST(JudgedStepsTest, StrangersWithoutTheTokenChangeNothing) {
  TestPlanOptions options = Adam(2);
  options.clip_norm = 1;
  const v1::JobPlan plan = MakeTestPlan(options);
  JudgedJob job(plan), undisturbed(plan);
  int chunks_of_1 = 0;
  for (const auto& chunk : plan.chunks()) chunks_of_1 += chunk.shard();
  WireHeader squares = FetchHeader(plan, 0, 0, /*rank=*/1);
  squares.kind = MessageKind::kSquares;
  WireHeader verdict = FetchHeader(plan, 0, 0, /*rank=*/0);
  verdict.kind = MessageKind::kVerdict;
  verdict.scalar = 1e30;
  const size_t bytes = 16 + 8 * chunks_of_1;
  job.Worker(0, 0).Send(squares, std::string(bytes, 'x'));
  job.Worker(0, 0).Send(squares, std::string(bytes + 8, 'x'));
  job.Worker(0, 0).Send(squares, "");
  job.Worker(0, 1).Send(verdict, std::string(16, 'x'));
  job.Worker(0, 1).Send(verdict, plan.session_token());  // nothing is awaited yet
  job.Worker(0, 1).Send(verdict, "");
  for (int64_t step = 0; step < 3; ++step) {
    job.Step(step, Wavy);
    undisturbed.Step(step, Wavy);
  }
  EXPECT_EQ(job.values(), undisturbed.values());
  EXPECT_EQ(job.refused(RefusalReason::kWrongToken), 3);
  EXPECT_EQ(job.refused(RefusalReason::kWrongStep), 2);
  EXPECT_EQ(job.refused(RefusalReason::kWrongLength), 1);
}

}  // namespace
}  // namespace muster
