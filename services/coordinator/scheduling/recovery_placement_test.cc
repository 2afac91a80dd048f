#include "services/coordinator/scheduling/recovery_placement.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::recovery_placement_test {
namespace {

using ::testing::ElementsAre;

FreeMembers Free(std::vector<std::string> workers, std::vector<FreeMembers::Ps> ps = {}) {
  return {.workers = std::move(workers), .ps = std::move(ps)};
}

TEST(RecoveryPlacementTest, FreeWorkerTakesTheRankOfALostOne) {
  FreeMembers free = Free({"w-10", "w-2"});
  free.ps = {{.name = "p-0"}};
  const auto placement = PlaceAgain(
      {.workers = {"w-0", "", "w-5"}, .workers_min = 3, .workers_max = 3, .ps = {"p-0"}}, free);
  ASSERT_TRUE(placement.has_value());
  EXPECT_THAT(placement->workers, ElementsAre("w-0", "w-2", "w-5"));
  EXPECT_THAT(placement->ps, ElementsAre("p-0"));
  EXPECT_THAT(free.workers, ElementsAre("w-10")) << "it stays free for other jobs";
}

TEST(RecoveryPlacementTest, SettlesForFewerWorkersDownToTheMinimumAndMovesThemUp) {
  RecoveringJob job{.workers = {"", "w-1", "w-2"}, .workers_min = 2, .workers_max = 3};
  FreeMembers nobody;
  EXPECT_FALSE(PlaceAgain(job, nobody).has_value()) << "another worker may attach";
  job.settle_for_fewer = true;
  EXPECT_THAT(PlaceAgain(job, nobody)->workers, ElementsAre("w-1", "w-2"));
  job.workers_min = 3;
  EXPECT_FALSE(PlaceAgain(job, nobody).has_value());
}

TEST(RecoveryPlacementTest, FreeWorkersJoinUpToTheMaximum) {
  FreeMembers free = Free({"w-3", "w-4"});
  const auto placement =
      PlaceAgain({.workers = {"w-0", ""}, .workers_min = 1, .workers_max = 3}, free);
  EXPECT_THAT(placement->workers, ElementsAre("w-0", "w-3", "w-4"));
}

TEST(RecoveryPlacementTest, AJobWithLogicalWorkersGrowsToUsefulNumbersOnly) {
  const auto workers = [](std::vector<std::string> ranks, int free_workers, int64_t room = 1000) {
    RecoveringJob job{.workers = std::move(ranks),
                      .workers_max = 8,
                      .logical = 8,
                      .settle_for_fewer = true,
                      .ps = {"p-0"},
                      .ps_memory = {.bytes_per_worker = 10}};
    FreeMembers free = Free({}, {{.name = "p-0", .room_bytes = room}});
    for (int i = 0; i < free_workers; ++i) free.workers.push_back(absl::StrCat("f-", i));
    const auto placement = PlaceAgain(job, free);
    return placement ? static_cast<int>(placement->workers.size()) : 0;
  };
  EXPECT_EQ(workers({"w-0", "w-1"}, 5), 4) << "seven are as fast as four";
  EXPECT_EQ(workers({"w-0", "w-1"}, 6), 8);
  EXPECT_EQ(workers({"w-0", "w-1"}, 6, /*room=*/75), 4);
  EXPECT_EQ(workers({"w-0", "w-1", "w-2"}, 0), 3) << "the remaining workers stay";
  EXPECT_EQ(workers({"w-0", "w-1", "w-2", "w-3", "w-4", "w-5", "w-6", ""}, 0), 7);
  EXPECT_EQ(workers({"w-0", "w-1", "w-2", "w-3", "w-4", "w-5", "", ""}, 1), 7)
      << "ranks of lost workers are filled";
  EXPECT_EQ(workers({"w-0", "w-1", "w-2", "w-3", "w-4", "w-5"}, 1), 6);
  EXPECT_EQ(workers({"w-0", "w-1", "w-2"}, 0, /*room=*/15), 1);
}

TEST(RecoveryPlacementTest, ExcludedWorkersAreTakenLastAndOnlyForTheMinimum) {
  RecoveringJob job{
      .workers = {"w-0", "", ""}, .workers_min = 2, .workers_max = 3, .excluded = {"w-1", "w-2"}};
  FreeMembers free = Free({"w-1", "w-2"});
  EXPECT_FALSE(PlaceAgain(job, free).has_value()) << "another worker may attach";
  job.settle_for_fewer = true;
  EXPECT_THAT(PlaceAgain(job, free)->workers, ElementsAre("w-0", "w-1"));
  EXPECT_THAT(free.workers, ElementsAre("w-2"));
  free = Free({"w-1", "w-2", "w-3"});
  EXPECT_THAT(PlaceAgain(job, free)->workers, ElementsAre("w-0", "w-3"));
  EXPECT_THAT(free.workers, ElementsAre("w-1", "w-2")) << "it stays free for other jobs";
  job.tries_excluded = false;
  free = Free({"w-1", "w-2"});
  EXPECT_FALSE(PlaceAgain(job, free).has_value());
}

TEST(RecoveryPlacementTest, WorkersOfAnotherKindAreNeitherTriedNorReservedFor) {
  RecoveringJob job{.number = 1,
                    .workers = {"w-0", ""},
                    .workers_min = 2,
                    .workers_max = 2,
                    .settle_for_fewer = true,
                    .excluded = {"w-1", "w-2"},
                    .of_other_kind = {"w-1"}};
  FreeMembers free = Free({"w-1", "w-2"});
  EXPECT_THAT(PlaceAgain(job, free)->workers, ElementsAre("w-0", "w-2"));
  job.of_other_kind = {"w-1", "w-2"};
  free = Free({"w-1", "w-2"});
  free.workers_attached = 3;
  EXPECT_FALSE(PlaceAgain(job, free).has_value());
  EXPECT_EQ(ReservedFor({job}, free), 0);
  free.workers_attached = 4;
  EXPECT_EQ(ReservedFor({job}, free), 1) << "another one serves a job";
}

// The last generation ended before the worker had prepared, so it is still excluded.
TEST(RecoveryPlacementTest, ExcludedWorkerThatLeftTheJobIsChosenLikeAFreeExcludedOne) {
  RecoveringJob job{.workers = {""},
                    .workers_min = 1,
                    .workers_max = 2,
                    .excluded = {"w-10"},
                    .own_excluded = {"w-2"}};
  FreeMembers free = Free({"w-10"});
  EXPECT_FALSE(PlaceAgain(job, free).has_value()) << "another worker may attach";
  job.settle_for_fewer = true;
  EXPECT_THAT(PlaceAgain(job, free)->workers, ElementsAre("w-2"));
  free = Free({"w-0", "w-10"});
  EXPECT_THAT(PlaceAgain(job, free)->workers, ElementsAre("w-0"));
}

TEST(RecoveryPlacementTest, PsWithoutRoomAreNotChosen) {
  RecoveringJob job{.workers = {"w-0", ""},
                    .workers_min = 1,
                    .workers_max = 2,
                    .settle_for_fewer = true,
                    .ps = {"p-0"},
                    .ps_memory = {.bytes = 10, .bytes_per_worker = 5}};
  FreeMembers free = Free(
      {"w-1"}, {{.name = "p-0", .room_bytes = 14}, {.name = "p-1", .jobs = 7, .room_bytes = 20}});
  const auto elsewhere = PlaceAgain(job, free);
  EXPECT_THAT(elsewhere->ps, ElementsAre("p-1")) << "its own ps is too full";
  EXPECT_EQ(free.ps[1].room_bytes + free.ps[0].room_bytes, 14);

  free = Free({"w-1"}, {{.name = "p-0", .room_bytes = 15}});
  EXPECT_THAT(PlaceAgain(job, free)->workers, ElementsAre("w-0"));
  EXPECT_THAT(free.workers, ElementsAre("w-1"));

  job.keeps_ps = true;
  job.own_ps["p-0"] = {.memory = job.ps_memory, .room_bytes = 19};
  EXPECT_THAT(PlaceAgain(job, free)->workers, ElementsAre("w-0"));
  job.own_ps["p-0"].room_bytes = 20;
  EXPECT_THAT(PlaceAgain(job, free)->workers, ElementsAre("w-0", "w-1"));
  job.own_ps["p-0"].room_bytes = 14;
  free = Free({"w-1"});
  EXPECT_FALSE(PlaceAgain(job, free).has_value());
}

// The job's share on one ps says nothing about the room that it needs on another.
TEST(RecoveryPlacementTest, EachPsOfTheJobNeedsRoomForItsOwnShareOnly) {
  RecoveringJob job{.number = 1,
                    .workers = {"w-0"},
                    .ps = {"p-0", "p-1"},
                    .ps_memory = {.bytes = 12},
                    .own_ps = {{"p-0", {.memory = {.bytes = 12}, .room_bytes = 16}},
                               {"p-1", {.memory = {.bytes = 6}, .room_bytes = 8}}}};
  FreeMembers free = Free({}, {{.name = "p-0", .room_bytes = 16, .capacity_bytes = 16},
                               {.name = "p-1", .room_bytes = 8, .capacity_bytes = 8},
                               {.name = "p-2", .room_bytes = 11, .capacity_bytes = 11}});
  free.workers_attached = 1;
  EXPECT_EQ(ReservedFor({job}, free), 1);
  FreeMembers anew = free;
  EXPECT_THAT(PlaceAgain(job, anew)->ps, ElementsAre("p-0", "p-1"));
  EXPECT_EQ(anew.ps[0].room_bytes, 4);
  EXPECT_EQ(anew.ps[1].room_bytes, 2);
  job.keeps_ps = true;
  EXPECT_EQ(ReservedFor({job}, free), 1);
  EXPECT_TRUE(PlaceAgain(job, free).has_value());
  job.own_ps["p-1"] = {.memory = {.bytes = 6}, .room_bytes = 5, .capacity_bytes = 5};
  EXPECT_EQ(ReservedFor({job}, free), 0);
  EXPECT_FALSE(PlaceAgain(job, free).has_value());
}

TEST(RecoveryPlacementTest, LostPsIsReplacedByTheLightestUnlessItsShardsAreNeeded) {
  const std::vector<FreeMembers::Ps> others = {
      {.name = "p-0"}, {.name = "p-2", .jobs = 3}, {.name = "p-3", .jobs = 1}};
  RecoveringJob job{.workers = {"w-0"}, .ps = {"p-0", ""}};
  FreeMembers free = Free({}, others);
  EXPECT_THAT(PlaceAgain(job, free)->ps, ElementsAre("p-0", "p-3"));
  job.keeps_ps = true;
  free = Free({}, others);
  EXPECT_FALSE(PlaceAgain(job, free).has_value());
  job = {.workers = {"w-0"}, .ps = {"", ""}};
  free = Free({}, {{.name = "p-7"}});
  EXPECT_FALSE(PlaceAgain(job, free).has_value());
}

TEST(RecoveryPlacementTest, RefusedPsIsTakenAfterAllOthers) {
  const RecoveringJob job{.workers = {"w-0"}, .ps = {"p-0", ""}, .excluded_ps = {"p-1"}};
  const std::vector<FreeMembers::Ps> two = {{.name = "p-0"}, {.name = "p-1"}};
  FreeMembers free = Free({}, two);
  free.ps.push_back({.name = "p-2", .jobs = 3});
  EXPECT_THAT(PlaceAgain(job, free)->ps, ElementsAre("p-0", "p-2"));
  free = Free({}, two);
  EXPECT_THAT(PlaceAgain(job, free)->ps, ElementsAre("p-0", "p-1")) << "it may succeed this time";
}

TEST(RecoveryPlacementTest, FreePsHoldMissingReplicasOfKeptShards) {
  RecoveringJob job{.workers = {"w-0"},
                    .ps = {"p-1"},
                    .keeps_ps = true,
                    .ps_wanted = 2,
                    .ps_memory = {.bytes = 10}};
  const FreeMembers all = Free({}, {{.name = "p-0", .room_bytes = 9},
                                    {.name = "p-1"},
                                    {.name = "p-2", .jobs = 1},
                                    {.name = "p-3"}});
  FreeMembers free = all;
  EXPECT_THAT(PlaceAgain(job, free)->ps, ElementsAre("p-1", "p-3"));
  EXPECT_EQ(free.ps.back().jobs, 1);
  job.excluded_ps = {"p-3"};
  free = all;
  EXPECT_THAT(PlaceAgain(job, free)->ps, ElementsAre("p-1", "p-2"))
      << "p-3 is excluded and gets no replicas";
  FreeMembers nobody = Free({}, {{.name = "p-1"}});
  EXPECT_THAT(PlaceAgain(job, nobody)->ps, ElementsAre("p-1"))
      << "the job continues without replicas";
}

TEST(RecoveryPlacementTest, LastJobYieldsIfAnEarlierOneCanContinueWithItsWorkers) {
  const RecoveringJob first{.number = 1,
                            .workers = {"w-0", "w-1", "w-2", ""},
                            .workers_min = 4,
                            .settle_for_fewer = true};
  RecoveringJob second = first, third = first;
  second.workers = {"w-4", "w-5", "w-6", ""};
  third.workers = {"w-8", "", "", ""};
  const FreeMembers free = Free({});
  EXPECT_FALSE(LastYields({}, free));
  EXPECT_FALSE(LastYields({first}, free));
  EXPECT_TRUE(LastYields({first, second}, free));
  third.workers[0] = "";
  EXPECT_FALSE(LastYields({first, third}, free)) << "the last job has no worker";
  RecoveringJob large = first;
  large.workers_min = 8;
  EXPECT_FALSE(LastYields({large, second}, free)) << "too few workers for the large job";
  EXPECT_TRUE(LastYields({large, second, first}, free)) << "the second job can continue";
  RecoveringJob without_ps = first;
  without_ps.workers = {"w-0", "w-1", "w-2", "w-3"};
  without_ps.ps = {""};
  EXPECT_FALSE(LastYields({without_ps, second}, free)) << "it lacks no worker";
}

TEST(RecoveryPlacementTest, FreeMembersAreReservedForTheFirstJobThatTheFleetIsLargeEnoughFor) {
  FreeMembers free = Free({"w-9"});
  const RecoveringJob first{.number = 1, .workers = {"w-0", "w-1", "", ""}, .workers_min = 4};
  const RecoveringJob second{.number = 2, .workers = {"w-2", "w-3", ""}, .workers_min = 3};
  free.workers_attached = 3;
  EXPECT_EQ(ReservedFor({first}, free), 0);
  free.workers_attached = 4;
  EXPECT_EQ(ReservedFor({first}, free), 1);
  EXPECT_EQ(ReservedFor({}, free), 0);
  EXPECT_EQ(ReservedFor({first, second}, free), 0)
      << "each job keeps the workers that the other lacks";
  free.workers_attached = 5;
  EXPECT_EQ(ReservedFor({first, second}, free), 2)
      << "the second job keeps the workers that the first lacks";
  free.workers_attached = 6;
  EXPECT_EQ(ReservedFor({first, second}, free), 1);
}

TEST(RecoveryPlacementTest, NothingIsReservedForAJobWhosePsAreMissingOrTooSmall) {
  FreeMembers free = Free({}, {{.name = "p-0", .room_bytes = 5, .capacity_bytes = 20}});
  free.workers_attached = 2;
  RecoveringJob job{.number = 1,
                    .workers = {"w-0", "w-1"},
                    .workers_min = 2,
                    .workers_max = 2,
                    .ps = {"p-0"},
                    .ps_memory = {.bytes = 10, .bytes_per_worker = 5}};
  EXPECT_EQ(ReservedFor({job}, free), 1);
  job.ps_memory.bytes = 11;
  EXPECT_EQ(ReservedFor({job}, free), 0);
  job.ps_memory.bytes = 10;
  job.ps = {"p-0", ""};
  EXPECT_EQ(ReservedFor({job}, free), 0) << "there is only one ps";

  job.keeps_ps = true;
  EXPECT_EQ(ReservedFor({job}, free), 0) << "no ps holds the lost shards";
  job.ps = {"p-1"};
  job.own_ps["p-1"] = {.memory = job.ps_memory, .room_bytes = 5, .capacity_bytes = 20};
  EXPECT_EQ(ReservedFor({job}, free), 1) << "p-1 is leaving, and is still needed";
  job.own_ps["p-1"].capacity_bytes = 19;
  EXPECT_EQ(ReservedFor({job}, free), 0);
}

}  // namespace
}  // namespace muster::recovery_placement_test
