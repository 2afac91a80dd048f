#include "lib/plan/chunk_check.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/limits/limits.h"
#include "lib/plan/chunk_placement.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"

namespace muster::chunk_check_test {
namespace {

using ::testing::HasSubstr;

v1::JobSpec Spec(v1::SyncMode mode) {
  v1::JobSpec spec;
  spec.mutable_sync()->set_mode(mode);
  spec.mutable_training()->mutable_optimizer()->mutable_adam()->set_learning_rate(1);
  return spec;
}

// Chunks 0, 1, 2 of 'w' (4, 4 and 2 elements) and 3 of 'b' (1 element), on two shards. With
// local_sgd, chunks 4 to 7 and 8 to 11 belong to the two slots.
v1::JobPlan Plan(v1::SyncMode mode = v1::BSP) {
  v1::JobPlan plan;
  plan.set_job("gpt-1");
  plan.set_generation(3);
  *plan.mutable_spec() = Spec(mode);
  v1::Parameter& w = *plan.mutable_graph()->add_parameters();
  w.set_name("w");
  w.add_shape(5);
  w.add_shape(2);
  plan.mutable_graph()->add_parameters()->set_name("b");
  plan.add_shards();
  plan.add_shards();
  std::vector<v1::PlanChunk> chunks =
      WithAveragedSlots(plan.spec(), CutIntoChunks(plan.graph(), 16));
  PlaceChunks(absl::MakeSpan(chunks), 2);
  plan.mutable_chunks()->Assign(chunks.begin(), chunks.end());
  return plan;
}

// Returns the error about the plan after a change; "" if it is valid.
std::string Fault(v1::JobPlan plan, const std::function<void(v1::JobPlan&)>& change) {
  change(plan);
  const absl::Status status = CheckChunks(plan);
  if (status.ok()) return "";
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(ReasonOf(status), "BAD_PLAN");
  EXPECT_THAT(std::string(status.message()), HasSubstr("plan of gpt-1, generation 3: "));
  return std::string(status.message());
}

TEST(ChunkCheckTest, ChunksThatCoverEverythingOnceAreValidInAnyOrder) {
  for (const v1::SyncMode mode : {v1::BSP, v1::SSP, v1::LOCAL_SGD, v1::ALLREDUCE}) {
    EXPECT_EQ(Fault(Plan(mode), [](v1::JobPlan&) {}), "");
    EXPECT_EQ(Fault(Plan(mode),
                    [](v1::JobPlan& plan) {
                      std::reverse(plan.mutable_chunks()->begin(), plan.mutable_chunks()->end());
                    }),
              "");
  }
}

TEST(ChunkCheckTest, ElementsInNoChunkAreNamed) {
  EXPECT_THAT(Fault(Plan(), [](auto& plan) { plan.mutable_chunks(0)->set_offset(1); }),
              HasSubstr("elements [0, 1) of parameter 'w' are in no chunk"));
  EXPECT_THAT(Fault(Plan(), [](auto& plan) { plan.mutable_chunks(1)->set_elements(3); }),
              HasSubstr("elements [7, 8) of parameter 'w' are in no chunk"));
  EXPECT_THAT(Fault(Plan(), [](auto& plan) { plan.mutable_chunks(2)->set_elements(1); }),
              HasSubstr("elements [9, 10) of parameter 'w' are in no chunk"));
  EXPECT_THAT(Fault(Plan(), [](auto& plan) { plan.mutable_chunks()->RemoveLast(); }),
              HasSubstr("elements [0, 1) of parameter 'b' are in no chunk"));
  EXPECT_THAT(Fault(Plan(v1::LOCAL_SGD), [](auto& plan) { plan.mutable_chunks()->RemoveLast(); }),
              HasSubstr("elements [0, 1) of slot 2 of parameter 'b' are in no chunk"));
}

TEST(ChunkCheckTest, ElementInTwoChunksIsNamed) {
  EXPECT_THAT(Fault(Plan(), [](auto& plan) { *plan.add_chunks() = plan.chunks(3); }),
              HasSubstr("chunk 4, elements [0, +1) of parameter 'b', begins in another chunk, "
                        "which ends at element 1"));
  EXPECT_THAT(Fault(Plan(), [](auto& plan) { plan.mutable_chunks(1)->set_elements(5); }),
              HasSubstr("chunk 2, elements [8, +2) of parameter 'w', begins in another chunk"));
}

TEST(ChunkCheckTest, ChunkOfAnUnknownPartIsNamed) {
  const auto fault = [](const std::function<void(v1::PlanChunk&)>& change) {
    return Fault(Plan(), [&](v1::JobPlan& plan) { change(*plan.mutable_chunks(2)); });
  };
  for (const int parameter : {-1, 2}) {
    EXPECT_THAT(fault([=](auto& chunk) { chunk.set_parameter(parameter); }),
                HasSubstr(absl::StrCat("chunk 2 is of parameter ", parameter, " of 2")));
  }
  for (const int shard : {-1, 2}) {
    EXPECT_THAT(fault([=](auto& chunk) { chunk.set_shard(shard); }),
                HasSubstr(absl::StrCat("chunk 2, elements [8, +2) of parameter 'w', is on shard ",
                                       shard, " of 2")));
  }
  EXPECT_THAT(fault([](auto& chunk) { chunk.set_offset(9); }), HasSubstr("'w', which has 10"));
  EXPECT_THAT(fault([](auto& chunk) { chunk.set_offset(-2); }), HasSubstr("'w', which has 10"));
  EXPECT_THAT(fault([](auto& chunk) { chunk.set_elements(INT64_MAX); }),
              HasSubstr("does not have"));
  EXPECT_THAT(fault([](auto& chunk) { chunk.set_elements(0); }), HasSubstr("does not have 1 to"));
}

TEST(ChunkCheckTest, OnlyAveragedSlotsHaveChunks) {
  EXPECT_THAT(Fault(Plan(), [](auto& plan) { plan.mutable_chunks(0)->set_slot(1); }),
              HasSubstr("slot 1 of parameter 'w', where 0 slots have chunks"));
  for (const int slot : {-1, 3}) {
    EXPECT_THAT(
        Fault(Plan(v1::LOCAL_SGD), [&](auto& plan) { plan.mutable_chunks(5)->set_slot(slot); }),
        HasSubstr("where 2 slots have chunks"));
  }
}

TEST(ChunkCheckTest, SlotsAreCutLikeTheirValues) {
  EXPECT_THAT(Fault(Plan(v1::LOCAL_SGD),
                    [](auto& plan) {
                      plan.mutable_chunks(5)->set_elements(3);
                      plan.mutable_chunks(6)->set_offset(7);
                      plan.mutable_chunks(6)->set_elements(3);
                    }),
              HasSubstr("chunk 5, elements [4, +3) of slot 1 of parameter 'w': the values are cut "
                        "otherwise"));
}

TEST(ChunkCheckTest, SizesBeyondTheirLimitsAreRefused) {
  const auto set_shape = [](v1::JobPlan& plan, const std::vector<int64_t>& shape) {
    plan.mutable_graph()->mutable_parameters(1)->mutable_shape()->Assign(shape.begin(),
                                                                         shape.end());
  };
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{0}, {-1, -1}, {int64_t{1} << 32, int64_t{1} << 32}}) {
    EXPECT_THAT(Fault(Plan(), [&](auto& plan) { set_shape(plan, shape); }),
                HasSubstr("parameter 'b' does not have 1 to "));
  }
  constexpr int64_t kElements = limits::kChunkBytesMax / 4 + 1;
  EXPECT_THAT(Fault(Plan(),
                    [&](auto& plan) {
                      set_shape(plan, {kElements});
                      plan.mutable_chunks(3)->set_elements(kElements);
                    }),
              HasSubstr("of parameter 'b', does not have 1 to "));
}

TEST(ChunkCheckTest, NumberOfChunksOfAJobIsLimited) {
  v1::Graph graph;
  v1::Parameter& parameter = *graph.add_parameters();
  parameter.add_shape(limits::kChunksMax);
  v1::JobSpec spec = Spec(v1::BSP);
  spec.set_chunk_bytes(4);
  EXPECT_EQ(ChunkCountFault(spec, graph), std::nullopt);
  EXPECT_EQ(ChunkCountFault(Spec(v1::BSP), graph), std::nullopt)
      << "the default chunk_bytes makes fewer chunks";

  spec.mutable_sync()->set_mode(v1::LOCAL_SGD);
  EXPECT_EQ(ChunkCountFault(spec, graph)->field, "chunk_bytes") << "each slot doubles them";

  spec.mutable_sync()->set_mode(v1::BSP);
  parameter.add_shape(2);
  EXPECT_THAT(ChunkCountFault(spec, graph)->description, HasSubstr("into 2097152 chunks"));
}

}  // namespace
}  // namespace muster::chunk_check_test
