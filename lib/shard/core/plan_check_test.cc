#include "lib/shard/core/plan_check.h"

#include <cstddef>
#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "lib/shard/testing/test_plan.h"
#include "lib/status/status.h"

namespace muster::plan_check_test {
namespace {

TEST(PlanCheckTest, ContradictoryPlanIsRefused) {
  auto refused = [](auto change) {
    v1::JobPlan plan = MakeTestPlan({});
    change(plan);
    return absl::IsInvalidArgument(CheckPlan(plan));
  };
  EXPECT_FALSE(refused([](v1::JobPlan&) {}));
  EXPECT_TRUE(refused([](v1::JobPlan& plan) { plan.clear_workers(); }));
  EXPECT_TRUE(refused([](v1::JobPlan& plan) { plan.set_session_token("short"); }));
  EXPECT_TRUE(refused([](v1::JobPlan& plan) { plan.set_first_step(-1); }));
  EXPECT_TRUE(refused(
      [](v1::JobPlan& plan) { plan.mutable_spec()->mutable_training()->clear_optimizer(); }));
  EXPECT_TRUE(refused([](v1::JobPlan& plan) { plan.mutable_chunks(0)->set_shard(1); }));
  EXPECT_TRUE(refused([](v1::JobPlan& plan) {
    plan.mutable_graph()->mutable_parameters(0)->set_statistic_momentum(1.5);
  }));
  EXPECT_TRUE(refused([](v1::JobPlan& plan) {
    plan.mutable_spec()->mutable_training()->set_precision(v1::FP16);
  })) << "without a loss scale";
  EXPECT_FALSE(refused([](v1::JobPlan& plan) {
    plan.mutable_spec()->mutable_training()->mutable_clip()->set_global_norm(1);
    plan.add_shards();
    plan.mutable_chunks(0)->set_shard(1);
  })) << "shard 0 judges, but has no chunks";
}

TEST(PlanCheckTest, ModeThatLacksARequestedFeatureIsRefused) {
  auto refused = [](TestPlanOptions options, const v1::SyncSpec& sync) {
    options.sync = sync;
    const absl::Status status = CheckPlan(MakeTestPlan(options));
    EXPECT_TRUE(status.ok() || ReasonOf(status) == "BAD_PLAN") << status;
    return !status.ok();
  };
  for (v1::SyncMode mode : {v1::SYNC_MODE_UNSPECIFIED, v1::BSP, v1::ALLREDUCE}) {
    EXPECT_FALSE(refused({.clip_norm = 1}, SyncOf(mode)));
  }
  for (v1::SyncMode mode : {v1::SSP, v1::ASP}) {
    EXPECT_FALSE(refused({}, SyncOf(mode)));
    EXPECT_TRUE(refused({.clip_norm = 1}, SyncOf(mode)));
    EXPECT_TRUE(refused({.precision = v1::FP16}, SyncOf(mode)));
  }
  v1::SyncSpec sync = SyncOf(v1::SSP);
  sync.set_staleness(-1);
  EXPECT_TRUE(refused({}, sync));

  sync = SyncOf(v1::BSP);
  sync.set_backup_workers(1);
  EXPECT_FALSE(refused({.clip_norm = 1}, sync));
  sync.set_backup_workers(2);
  EXPECT_TRUE(refused({.workers = 2}, sync)) << "no gradient would be part of a step";
  sync.set_mode(v1::ASP);
  EXPECT_TRUE(refused({.workers = 3}, sync)) << "asp never waits for workers";

  sync = SyncOf(v1::LOCAL_SGD);
  EXPECT_TRUE(refused({}, sync)) << "sync.every is missing";
  sync.set_every(4);
  EXPECT_FALSE(refused({.checkpoint_every = 8}, sync));
  EXPECT_TRUE(refused({.checkpoint_every = 6}, sync)) << "no average is made at step 6";
  EXPECT_TRUE(refused({.clip_norm = 1}, sync));
  sync.mutable_compression()->set_kind(v1::COMPRESSION_INT8);
  EXPECT_TRUE(refused({}, sync));
}

TEST(PlanCheckTest, LogicalWorkersAreRefusedIfTheirNumberDecidesTheSums) {
  const auto refused = [](int logical, auto change) {
    v1::JobPlan plan = MakeTestPlan({.workers = 3});
    plan.mutable_spec()->mutable_data()->set_batch_size(8);
    plan.mutable_spec()->mutable_resources()->mutable_workers()->set_logical(logical);
    change(*plan.mutable_spec());
    return absl::IsInvalidArgument(CheckPlan(plan));
  };
  const auto nothing = [](v1::JobSpec&) {};
  for (const int logical : {0, 3, 8}) EXPECT_FALSE(refused(logical, nothing)) << logical;
  for (const int logical : {-1, 2, 9}) EXPECT_TRUE(refused(logical, nothing)) << logical;
  const std::vector<std::function<void(v1::JobSpec&)>> changes = {
      [](v1::JobSpec& spec) { spec.mutable_sync()->set_mode(v1::SSP); },
      [](v1::JobSpec& spec) { spec.mutable_sync()->set_mode(v1::ALLREDUCE); },
      [](v1::JobSpec& spec) { spec.mutable_sync()->set_backup_workers(1); },
      [](v1::JobSpec& spec) {
        spec.mutable_sync()->mutable_compression()->set_kind(v1::COMPRESSION_BF16);
      },
      [](v1::JobSpec& spec) { spec.mutable_training()->set_micro_batch_size(1); },
      [](v1::JobSpec& spec) { spec.mutable_training()->set_deterministic(false); },
      [](v1::JobSpec& spec) { spec.mutable_model()->mutable_external(); },
  };
  for (size_t i = 0; i < changes.size(); ++i) EXPECT_TRUE(refused(4, changes[i])) << i;
}

TEST(PlanCheckTest, ProgramIsRefusedWhereItsPushesCannotSayEverything) {
  auto refused = [](TestPlanOptions options, const v1::SyncSpec& sync = {}) {
    options.has_program = true;
    options.sync = sync;
    return ReasonOf(CheckPlan(MakeTestPlan(options))) == "BAD_PLAN";
  };
  for (v1::SyncMode mode : {v1::SYNC_MODE_UNSPECIFIED, v1::BSP, v1::SSP, v1::ASP}) {
    EXPECT_FALSE(refused({}, SyncOf(mode)));
  }
  v1::SyncSpec local_sgd = SyncOf(v1::LOCAL_SGD);
  local_sgd.set_every(4);
  EXPECT_TRUE(refused({}, local_sgd));
  EXPECT_TRUE(refused({}, SyncOf(v1::ALLREDUCE)));
  EXPECT_TRUE(refused({.precision = v1::FP16}));

  TestPlanOptions options{.clip_norm = 1, .has_program = true};
  options.optimizer.mutable_lamb()->set_learning_rate(1);
  EXPECT_TRUE(CheckPlan(MakeTestPlan(options)).ok());
  options.has_replicas = true;
  EXPECT_EQ(ReasonOf(CheckPlan(MakeTestPlan(options))), "BAD_PLAN") << "lamb with replicas";
  options.optimizer = TestPlanOptions::PlainSgd(1);
  EXPECT_TRUE(CheckPlan(MakeTestPlan(options)).ok());
}

TEST(PlanCheckTest, SharesOfTheBatchAreRequiredIfGradientsAreScaledByThem) {
  v1::JobPlan plan = MakeTestPlan({.sync = SyncOf(v1::ASP)});
  plan.mutable_workers(1)->set_samples(0);
  EXPECT_FALSE(CheckPlan(plan).ok());
  plan.mutable_spec()->mutable_sync()->set_mode(v1::BSP);
  EXPECT_TRUE(CheckPlan(plan).ok());
}

}  // namespace
}  // namespace muster::plan_check_test
