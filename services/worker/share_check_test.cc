#include "services/worker/share_check.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/exchange/fake_ps.h"
#include "lib/status/status.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/coordinator/scheduling/job_plan.h"
#include "services/worker/testing/tiny_jobs.h"

namespace muster::share_check_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();
constexpr int64_t kInt64Min = std::numeric_limits<int64_t>::min();

std::vector<v1::Hello> Members(const std::string& role, int count) {
  std::vector<v1::Hello> members(count);
  for (int i = 0; i < count; ++i) {
    members[i].set_member(absl::StrCat(role, "-", i));
    if (role == "ps") members[i].add_addresses(absl::StrCat("inprocess:", i));
  }
  return members;
}

// Returns the plan that the coordinator makes for `job`.
v1::JobPlan PlanOf(const FakePs::Options& job, int workers, v1::SyncMode mode = v1::BSP) {
  PlanRequest request{.graph = job.graph, .workers = Members("worker", workers)};
  request.job.set_name("jobs/line-1");
  request.job.set_number(1);
  request.job.set_generation(2);
  *request.job.mutable_spec() = job.spec;
  request.job.mutable_spec()->set_chunk_bytes(1024);
  request.job.mutable_spec()->mutable_sync()->set_mode(mode);
  request.job.mutable_spec()->mutable_sync()->set_every(2);
  if (mode != v1::ALLREDUCE) request.ps = Members("ps", 2);
  return *MakePlan(std::move(request));
}

// Three workers share a batch of 32: [0, 11), [11, 22), [22, 32).
v1::JobPlan LinePlan(v1::SyncMode mode = v1::BSP) {
  return PlanOf(LinearJob(/*workers=*/3), 3, mode);
}

// Applies `change` to `plan`. Returns the error message, or "" if the plan is valid.
std::string Fault(v1::JobPlan plan, const std::function<void(v1::JobPlan&)>& change) {
  change(plan);
  const absl::Status status = CheckShare(plan);
  if (status.ok()) return "";
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(ReasonOf(status), "BAD_PLAN");
  EXPECT_THAT(std::string(status.message()), HasSubstr("plan of line-1, generation 3: "));
  return std::string(status.message());
}

TEST(ShareCheckTest, AcceptsTheCoordinatorsPlansInEveryMode) {
  for (const v1::SyncMode mode :
       {v1::SYNC_MODE_UNSPECIFIED, v1::BSP, v1::SSP, v1::ASP, v1::LOCAL_SGD, v1::ALLREDUCE}) {
    for (const int workers : {1, 2, 3, 7, 31, 32}) {
      EXPECT_EQ(CheckShare(PlanOf(LinearJob(workers), workers, mode)), absl::OkStatus()) << mode;
    }
  }
  const std::string text = testing::TempDir() + "/share_check_test.txt";
  EXPECT_EQ(CheckShare(PlanOf(TextJob(text, /*workers=*/2), 2)), absl::OkStatus());
  EXPECT_EQ(CheckShare(PlanOf(ProgramJob(/*workers=*/2), 2)), absl::OkStatus()) << "no nodes";
}

TEST(ShareCheckTest, EachWorkerHasTheSamplesOfItsLogicalWorkers) {
  for (const int workers : {1, 3, 5, 8}) {
    FakePs::Options job = LinearJob(workers);
    job.spec.mutable_data()->set_batch_size(35);
    job.spec.mutable_resources()->mutable_workers()->set_logical(8);
    EXPECT_EQ(CheckShare(PlanOf(job, workers)), absl::OkStatus()) << workers;
  }
  FakePs::Options job = LinearJob(/*workers=*/3);
  job.spec.mutable_resources()->mutable_workers()->set_logical(8);
  const v1::JobPlan plan = PlanOf(job, 3);
  ASSERT_EQ(plan.workers(0).samples(), 16);
  ASSERT_EQ(plan.workers(1).samples(), 8);
  EXPECT_THAT(Fault(plan,
                    [](auto& plan) {
                      plan.mutable_workers(1)->set_samples(9);
                      plan.mutable_workers(2)->set_first_position(25);
                      plan.mutable_workers(2)->set_samples(7);
                    }),
              HasSubstr("worker 1 ('worker-1') has 9 samples, its 2 logical workers of 8 have 8"));
}

TEST(ShareCheckTest, WarmUpNeedsNoToken) {
  v1::JobPlan plan = WarmUpPlan(LinePlan(), Members("worker", 5));
  EXPECT_THAT(Fault(plan, [](auto&) {}), HasSubstr("a token of 0 bytes")) << "of a generation";
  plan.set_rehearsal(4);
  EXPECT_EQ(Fault(plan, [](auto&) {}), "");
  EXPECT_THAT(Fault(plan, [](auto& plan) { plan.mutable_workers(4)->set_samples(0); }),
              HasSubstr("of a batch of 32"));
}

TEST(ShareCheckTest, RejectsAShareOutsideOfTheBatch) {
  const auto with_samples = [](int rank, int64_t samples) {
    return Fault(LinePlan(), [&](auto& plan) { plan.mutable_workers(rank)->set_samples(samples); });
  };
  EXPECT_THAT(with_samples(1, 0), HasSubstr("worker 1 ('worker-1') has samples [11, +0) of a batch "
                                            "of 32: it needs at least one; run the same version"));
  EXPECT_THAT(with_samples(1, -1), HasSubstr("needs at least one"));
  EXPECT_THAT(with_samples(1, kInt64Min), HasSubstr("needs at least one"));
  EXPECT_THAT(with_samples(2, 11), HasSubstr("ends beyond the batch"));
  EXPECT_THAT(with_samples(2, kInt64Max), HasSubstr("ends beyond the batch")) << "no overflow";
  EXPECT_THAT(with_samples(0, kInt64Max), HasSubstr("ends beyond the batch"));
}

TEST(ShareCheckTest, RequiresOneWorkerForEverySample) {
  const auto with_first = [](int rank, int64_t first) {
    return Fault(LinePlan(),
                 [&](auto& plan) { plan.mutable_workers(rank)->set_first_position(first); });
  };
  for (const int64_t first :
       {int64_t{10}, int64_t{12}, int64_t{-11}, int64_t{32}, kInt64Max, kInt64Min}) {
    EXPECT_THAT(with_first(1, first), HasSubstr("it must begin at 11")) << first;
  }
  EXPECT_THAT(with_first(0, -1), HasSubstr("it must begin at 0"));
  EXPECT_THAT(Fault(LinePlan(), [](auto& plan) { plan.mutable_workers(0)->set_samples(10); }),
              HasSubstr("worker 1 ('worker-1') has samples [11, +11) of a batch of 32: it must "
                        "begin at 10"));
  EXPECT_THAT(Fault(LinePlan(), [](auto& plan) { plan.mutable_workers(2)->set_samples(9); }),
              HasSubstr("samples [31, 32) of a batch of 32 are no worker's"));
}

TEST(ShareCheckTest, RejectsSettingsBeyondTheirLimits) {
  for (const int64_t batch : {int64_t{0}, int64_t{-32}, int64_t{1} << 21, kInt64Max, kInt64Min}) {
    EXPECT_THAT(
        Fault(LinePlan(),
              [&](auto& plan) { plan.mutable_spec()->mutable_data()->set_batch_size(batch); }),
        HasSubstr(absl::StrCat("data.batch_size is ", batch, ", must be in [1, 1048576]")));
  }
  for (const int64_t samples : {int64_t{-1}, int64_t{1} << 21, kInt64Max, kInt64Min}) {
    EXPECT_THAT(Fault(LinePlan(),
                      [&](auto& plan) {
                        plan.mutable_spec()->mutable_training()->set_micro_batch_size(samples);
                      }),
                HasSubstr(absl::StrCat("training.micro_batch_size is ", samples, ", must be")));
  }
  for (const int64_t bytes : {int64_t{-1}, int64_t{1} << 30, kInt64Max, kInt64Min}) {
    EXPECT_THAT(Fault(LinePlan(), [&](auto& plan) { plan.mutable_spec()->set_chunk_bytes(bytes); }),
                HasSubstr(absl::StrCat("chunk_bytes is ", bytes, ", must be in")));
  }
}

TEST(ShareCheckTest, RejectsAGraphWithoutShapes) {
  EXPECT_THAT(Fault(LinePlan(),
                    [](auto& plan) { plan.mutable_graph()->mutable_nodes(0)->set_op("Guess"); }),
              HasSubstr("its graph: "));
  EXPECT_THAT(
      Fault(LinePlan(), [](auto& plan) { plan.mutable_graph()->mutable_inputs(0)->clear_shape(); }),
      HasSubstr("its graph: "));
}

TEST(ShareCheckTest, RejectsInputsThatAreTooLarge) {
  EXPECT_THAT(Fault(LinePlan(),
                    [](auto& plan) {
                      v1::GraphInput& input = *plan.mutable_graph()->add_inputs();
                      input.set_name("wide");
                      input.set_dtype(v1::DTYPE_F32);
                      input.add_shape(-1);
                      input.add_shape(int64_t{1} << 40);
                      plan.mutable_spec()->mutable_data()->set_batch_size(1 << 20);
                      plan.mutable_workers(2)->set_samples((1 << 20) - 22);
                    }),
              HasSubstr("with input 'wide' a sample has "));
}

TEST(ShareCheckTest, RejectsAJobThatTrainsNothing) {
  for (const v1::SyncMode mode : {v1::BSP, v1::LOCAL_SGD}) {
    EXPECT_THAT(Fault(LinePlan(mode),
                      [](auto& plan) {
                        v1::ParameterGroup& group =
                            *plan.mutable_spec()->mutable_training()->add_parameter_groups();
                        group.add_match("*");
                        group.set_frozen(true);
                      }),
                HasSubstr("parameters are frozen"));
  }
}

TEST(ShareCheckTest, RejectsPlansThatAreInvalidForShards) {
  EXPECT_THAT(Fault(LinePlan(), [](auto& plan) { plan.clear_session_token(); }),
              HasSubstr("a token of 0 bytes"));
  EXPECT_THAT(Fault(LinePlan(), [](auto& plan) { plan.mutable_chunks(0)->set_shard(2); }),
              HasSubstr("is on shard 2 of 2"));
  EXPECT_THAT(Fault(LinePlan(v1::LOCAL_SGD),
                    [](auto& plan) { plan.mutable_spec()->mutable_sync()->set_every(0); }),
              HasSubstr("local_sgd every 0"));
  EXPECT_THAT(Fault(LinePlan(),
                    [](auto& plan) {
                      plan.clear_shards();
                      plan.clear_chunks();
                      plan.mutable_graph()->clear_parameters();
                      plan.mutable_graph()->clear_nodes();
                      plan.mutable_graph()->clear_loss();
                    }),
              HasSubstr("no shards"));
}

}  // namespace
}  // namespace muster::share_check_test
