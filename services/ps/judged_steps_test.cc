// Steps that all shards of a job apply or skip together: fp16 and clipping by global norm.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/shard/core/plan_check.h"
#include "lib/shard/testing/test_plan.h"
#include "services/ps/fake_peers.h"
#include "services/ps/judged_job.h"

namespace muster::judged_steps_test {
namespace {

using ::testing::ContainsRegex;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TestPlanOptions Adam(int shards) {
  TestPlanOptions options{.parameters = {700, 5, 333}, .chunk_bytes = 512, .shards = shards};
  options.optimizer.mutable_adam()->set_learning_rate(0.01);
  return options;
}

TEST(JudgedStepsTest, OverflowOnOneWorkerSkipsTheStepOnEveryShard) {
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
        EXPECT_THAT(job.metrics(), ContainsRegex("muster_ps_job_skipped_steps_total.job=.* 1\n"));
        for (int shard = 0; shard < shards; ++shard) {
          EXPECT_EQ(job.progress(shard).skips_in_row, 1);
        }
        continue;
      }
      before = job.values();
      // `without` gets the same gradients but never sees the skipped step. The values are equal
      // only if the skipped step did not advance Adam's step count.
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

TEST(JudgedStepsTest, LossScaleGrowsAndFallsToItsMinimum) {
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

TEST(JudgedStepsTest, NumberOfShardsDoesNotChangeABit) {
  std::vector<Values> expected;
  for (int shards : {1, 2, 3, 30}) {  // more shards than chunks
    TestPlanOptions options = Adam(shards);
    options.parameters = {700, 5, 333};
    options.clip_norm = 0.7;
    JudgedJob job(MakeTestPlan(options));
    for (int64_t step = 0; step < 5; ++step) job.Step(step, Wavy);
    if (expected.empty()) expected = job.values();
    EXPECT_EQ(job.values(), expected) << shards;
    EXPECT_EQ(job.loss_scale(), 0) << "an fp32 job has no loss scale";
  }
}

// Shard 0 has no chunks if its host also has workers and its share of the traffic is zero.
TEST(JudgedStepsTest, ShardZeroDecidesEvenWithoutChunks) {
  for (int backup_workers : {0, 1}) {
    std::vector<Values> expected;
    for (int shards : {1, 3}) {
      TestPlanOptions options = Adam(shards);
      options.clip_norm = 0.7;
      options.sync.set_backup_workers(backup_workers);
      v1::JobPlan plan = MakeTestPlan(options);
      for (v1::PlanChunk& chunk : *plan.mutable_chunks()) {
        if (shards > 1 && chunk.shard() == 0) chunk.set_shard(1);
      }
      ASSERT_TRUE(CheckPlan(plan).ok());
      JudgedJob job(plan);
      for (int64_t step = 0; step < 4; ++step) {
        job.Step(step, [](int64_t s, int, int p, int64_t i) { return Wavy(s, 0, p, i); });
      }
      if (expected.empty()) expected = job.values();
      EXPECT_EQ(job.values(), expected) << backup_workers;
    }
  }
}

TEST(JudgedStepsTest, StatisticIsNotInTheNormAndMovesTowardsTheContribution) {
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
  EXPECT_EQ(job.values(), before) << "a non-finite statistic skips the step";
  job.Step(2, gradient);
  EXPECT_FLOAT_EQ(job.values()[1][3], before[1][3] + 0.1 * (1000 - before[1][3]));
}

TEST(JudgedStepsTest, SnapshotHoldsTheStateOfItsVersion) {
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

TEST(JudgedStepsTest, WorkerThatImpersonatesAShardIsCutOffAndChangesNothing) {
  TestPlanOptions options = Adam(2);
  options.clip_norm = 1;
  const v1::JobPlan plan = MakeTestPlan(options);
  JudgedJob job(plan), undisturbed(plan);
  WireHeader squares = FetchHeader(plan, 0, 0, /*rank=*/1);
  squares.kind = MessageKind::kSquares;
  WireHeader verdict = FetchHeader(plan, 0, 0, /*rank=*/0);
  verdict.kind = MessageKind::kVerdict;
  verdict.scalar = 1e30;
  int chunks_of_1 = 0;
  for (const auto& chunk : plan.chunks()) chunks_of_1 += chunk.shard();
  job.Worker(0, 0).Send(squares, std::string(8 * chunks_of_1, 'x'));
  job.Worker(0, 1).Send(verdict);
  for (int shard : {0, 1}) {
    EXPECT_FALSE(job.Worker(0, shard).AwaitLost().ok());
    job.GreetAgain(0, shard);
  }
  for (int64_t step = 0; step < 3; ++step) {
    job.Step(step, Wavy);
    undisturbed.Step(step, Wavy);
  }
  EXPECT_EQ(job.values(), undisturbed.values());
  EXPECT_EQ(job.refused(RefusalReason::kBadHeader), 2);
}

TEST(JudgedStepsTest, LostShardIsNamedByTheOthers) {
  TestPlanOptions options = Adam(2);
  options.clip_norm = 1;
  const v1::JobPlan plan = MakeTestPlan(options);
  JudgedJob job(plan);
  job.Step(0, Wavy);
  job.StopShard(1);
  EXPECT_EQ(job.listener().AwaitCulprits(1), std::vector<std::string>{plan.shards(1).member()});
}

TEST(JudgedStepsTest, NextGenerationAgreesOverTheExistingLinks) {
  TestPlanOptions options = Adam(3);
  options.clip_norm = 1;
  const v1::JobPlan plan = MakeTestPlan(options);
  JudgedJob undisturbed(plan), job(plan);
  for (int64_t step = 0; step < 3; ++step) job.Step(step, Wavy);
  job.BeginNextGeneration();
  for (int64_t step = 0; step < 5; ++step) {
    job.Step(step, Wavy);
    undisturbed.Step(step, Wavy);
  }
  EXPECT_EQ(job.values(), undisturbed.values());
  EXPECT_TRUE(job.listener().AwaitCulprits(0).empty());
}

// Whichever shard is released first, the others are released a moment later.
TEST(JudgedStepsTest, ShardThatIsReleasedFirstIsNotLost) {
  for (const int first : {0, 1}) {
    TestPlanOptions options = Adam(2);
    options.clip_norm = 1;
    JudgedJob job(MakeTestPlan(options));
    job.Step(0, Wavy);
    job.ReleaseShard(first);
    // The second of two fetches is answered after the messages between the shards were handled.
    for (int i = 0; i < 2; ++i) job.ExpectAlive(1 - first, /*version=*/1);
    EXPECT_TRUE(job.listener().AwaitCulprits(0).empty()) << first;
    job.ReleaseShard(1 - first);
  }
}

}  // namespace
}  // namespace muster::judged_steps_test
