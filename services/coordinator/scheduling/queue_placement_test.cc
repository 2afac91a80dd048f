#include "services/coordinator/scheduling/queue_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::queue_placement_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

FreeMembers Fleet(std::vector<std::string> workers, std::vector<std::string> ps) {
  FreeMembers free{.workers = std::move(workers)};
  for (const std::string& name : ps) free.ps.push_back({name, 0});
  return free;
}

std::vector<uint64_t> Numbers(const std::vector<Placement>& placements) {
  std::vector<uint64_t> numbers;
  for (const Placement& placement : placements) numbers.push_back(placement.number);
  return numbers;
}

std::vector<Placement> Schedule(absl::Span<const WaitingJob> waiting, FreeMembers free) {
  return Decide(waiting, std::move(free)).placements;
}

TEST(QueuePlacementTest, AJobStartsOnlyWithAllItsMembers) {
  const WaitingJob job{.number = 1, .workers_min = 2, .workers_max = 2, .ps = 2};

  EXPECT_THAT(Schedule({job}, Fleet({"w-0"}, {"p-0", "p-1"})), IsEmpty());
  EXPECT_THAT(Schedule({job}, Fleet({"w-0", "w-1"}, {"p-0"})), IsEmpty());
  EXPECT_THAT(Numbers(Schedule({job}, Fleet({"w-0", "w-1"}, {"p-0", "p-1"}))), ElementsAre(1));
}

TEST(QueuePlacementTest, AJobWithoutPsNeedsNone) {
  const WaitingJob job{.number = 1, .workers_min = 2, .workers_max = 2, .ps = 0};

  const auto placements = Schedule({job}, Fleet({"w-0", "w-1"}, {}));

  ASSERT_THAT(Numbers(placements), ElementsAre(1));
  EXPECT_THAT(placements[0].workers, ElementsAre("w-0", "w-1"));
  EXPECT_THAT(placements[0].ps, IsEmpty());
}

TEST(QueuePlacementTest, HigherPriorityGoesFirstThenSubmissionOrder) {
  const std::vector<WaitingJob> jobs = {
      {.number = 1}, {.number = 2, .priority = 5}, {.number = 3, .priority = 5}};

  EXPECT_THAT(Numbers(Schedule(jobs, Fleet({"w-0", "w-1"}, {"p-0"}))), ElementsAre(2, 3));
}

TEST(QueuePlacementTest, LaterJobsStartBeforeOneThatDoesNotFit) {
  const std::vector<WaitingJob> jobs = {{.number = 1, .workers_min = 4, .workers_max = 4},
                                        {.number = 2}};

  EXPECT_THAT(Numbers(Schedule(jobs, Fleet({"w-0", "w-1"}, {"p-0"}))), ElementsAre(2));
}

TEST(QueuePlacementTest, WorkersUpToTheMaximumInNaturalOrder) {
  const auto placements = Schedule({WaitingJob{.number = 1, .workers_min = 1, .workers_max = 3}},
                                   Fleet({"w-10", "w-2", "w-1", "w-30"}, {"p-0"}));

  ASSERT_EQ(placements.size(), 1);
  EXPECT_THAT(placements[0].workers, ElementsAre("w-1", "w-2", "w-10"));
}

TEST(QueuePlacementTest, AJobThatExpectsMoreWorkersDoesNotSettleForFewer) {
  WaitingJob job{.number = 1, .workers_min = 1, .workers_max = 2, .settle_for_fewer = false};
  EXPECT_THAT(Schedule({job}, Fleet({"w-0"}, {"p-0"})), IsEmpty());

  job.settle_for_fewer = true;
  EXPECT_THAT(Numbers(Schedule({job}, Fleet({"w-0"}, {"p-0"}))), ElementsAre(1));
}

TEST(QueuePlacementTest, AJobWithLogicalWorkersStartsWithAUsefulNumber) {
  WaitingJob job{.number = 1, .workers_min = 1, .workers_max = 8, .logical = 8};
  const std::vector<std::string> seven = {"w-0", "w-1", "w-2", "w-3", "w-4", "w-5", "w-6"};
  const auto workers = [&](std::vector<FreeMembers::Ps> ps) {
    const auto placements = Schedule({job}, {.workers = seven, .ps = std::move(ps)});
    return placements.empty() ? 0 : static_cast<int>(placements[0].workers.size());
  };
  EXPECT_EQ(workers({{.name = "p-0"}}), 4);
  job.ps_memory.bytes_per_worker = 10;
  EXPECT_EQ(workers({{.name = "p-0", .room_bytes = 39}}), 2) << "three are no faster";
  job.workers_min = 3;
  EXPECT_EQ(workers({{.name = "p-0", .room_bytes = 39}}), 3);
  EXPECT_EQ(workers({{.name = "p-0", .room_bytes = 29}}), 0);
}

TEST(QueuePlacementTest, AJobTakesTheWorkersThatItPrefersFirst) {
  const auto placements = Schedule(
      {WaitingJob{.number = 1, .workers_max = 3, .logical = 3, .preferred = {"w-10", "w-3", "w-4"}},
       WaitingJob{.number = 2}},
      Fleet({"w-1", "w-2", "w-3", "w-10"}, {"p-0"}));
  ASSERT_EQ(placements.size(), 2);
  EXPECT_THAT(placements[0].workers, ElementsAre("w-1", "w-3", "w-10"));
  EXPECT_THAT(placements[1].workers, ElementsAre("w-2"));
}

TEST(QueuePlacementTest, AJobTakesNoUnsuitableWorkers) {
  WaitingJob job{.number = 1, .workers_max = 3, .preferred = {"w-2"}, .unsuitable = {"w-1", "w-2"}};
  FreeMembers free = Fleet({"w-1", "w-2", "w-3", "w-4"}, {"p-0"});
  free.workers_attached = 5;
  const auto placements = Schedule({job, WaitingJob{.number = 2}}, free);
  ASSERT_EQ(placements.size(), 2);
  EXPECT_THAT(placements[0].workers, ElementsAre("w-3", "w-4"));
  EXPECT_THAT(placements[1].workers, ElementsAre("w-1"));

  job.workers_min = 3;
  const Decision decision = Decide({job}, free);
  ASSERT_EQ(decision.waits.size(), 1);
  EXPECT_EQ(decision.waits[0].cause, WaitCause::kWorkers);
  EXPECT_EQ(decision.waits[0].workers_free, 2);
  EXPECT_EQ(decision.waits[0].workers_attached, 3);
  EXPECT_EQ(decision.waits[0].workers_unsuitable, 2);
  EXPECT_TRUE(CouldFit(job, free));
  job.workers_min = 4;
  EXPECT_FALSE(CouldFit(job, free));
}

TEST(QueuePlacementTest, FreeMembersAreReservedForAGangThatHasWaitedLong) {
  const std::vector<WaitingJob> jobs = {
      {.number = 1, .workers_min = 3, .workers_max = 3, .has_reservation = true},
      {.number = 2},
      {.number = 3, .priority = 1}};
  FreeMembers free = Fleet({"w-0", "w-1"}, {"p-0"});
  free.workers_attached = 3;  // one serves a job

  EXPECT_THAT(Numbers(Schedule(jobs, free)), ElementsAre(3)) << "it is ahead in the queue";
  free.workers.push_back("w-2");
  EXPECT_THAT(Numbers(Schedule({jobs[0], jobs[1]}, free)), ElementsAre(1));
}

TEST(QueuePlacementTest, OnlySuitableWorkersAreReserved) {
  const std::vector<WaitingJob> jobs = {{.number = 1,
                                         .workers_min = 2,
                                         .workers_max = 2,
                                         .unsuitable = {"w-1"},
                                         .has_reservation = true},
                                        {.number = 2, .workers_max = 2}};
  FreeMembers free = Fleet({"w-0", "w-1"}, {"p-0"});
  free.workers_attached = 3;  // one serves a job
  const auto placements = Schedule(jobs, free);
  EXPECT_THAT(Numbers(placements), ElementsAre(2));
  EXPECT_THAT(placements[0].workers, ElementsAre("w-1"));
}

TEST(QueuePlacementTest, NoJobStartsWhileAJobAheadOfTheQueueReserves) {
  FreeMembers free = Fleet({"w-0", "w-1"}, {"p-0"});
  free.reserved_for = 9;

  const Decision decision = Decide({{.number = 1}, {.number = 2, .priority = 1}}, free);

  EXPECT_THAT(decision.placements, IsEmpty());
  ASSERT_EQ(decision.waits.size(), 2);
  for (const Wait& wait : decision.waits) {
    EXPECT_EQ(wait.cause, WaitCause::kItsTurn);
    EXPECT_EQ(wait.reserved_for, 9);
  }
}

TEST(QueuePlacementTest, NothingIsReservedForAGangThatTheFleetIsTooSmallFor) {
  const std::vector<WaitingJob> jobs = {
      {.number = 1, .workers_min = 3, .workers_max = 3, .has_reservation = true},
      {.number = 2, .ps = 2, .has_reservation = true},
      {.number = 3}};
  FreeMembers free = Fleet({"w-0", "w-1"}, {"p-0"});
  free.workers_attached = 2;

  EXPECT_THAT(Numbers(Schedule(jobs, free)), ElementsAre(3));
}

TEST(QueuePlacementTest, PsWithTheFewestJobsAreChosenAndShared) {
  FreeMembers free{.workers = {"w-0", "w-1"}, .ps = {{"p-0", 2}, {"p-1", 0}, {"p-2", 1}}};
  const std::vector<WaitingJob> jobs = {{.number = 1, .ps = 2}, {.number = 2, .ps = 1}};

  const auto placements = Schedule(jobs, free);

  ASSERT_EQ(placements.size(), 2);
  EXPECT_THAT(placements[0].ps, ElementsAre("p-1", "p-2"));
  EXPECT_THAT(placements[1].ps, ElementsAre("p-1"));
}

TEST(QueuePlacementTest, PsWithoutRoomForTheShardsArePassedOver) {
  FreeMembers free{.workers = {"w-0", "w-1"},
                   .ps = {{"p-0", 0, /*room_bytes=*/99, /*capacity_bytes=*/500},
                          {"p-1", 5, /*room_bytes=*/250, /*capacity_bytes=*/500}}};
  const WaitingJob job{.number = 1, .ps_memory = {.bytes = 60, .bytes_per_worker = 40}};
  WaitingJob second = job;
  second.number = 2;

  const auto placements = Schedule({job, second}, free);

  ASSERT_THAT(Numbers(placements), ElementsAre(1, 2)) << "150 bytes are left for the second job";
  EXPECT_THAT(placements[0].ps, ElementsAre("p-1"));
  EXPECT_THAT(placements[1].ps, ElementsAre("p-1"));
  free.workers.push_back("w-2");
  WaitingJob third = job;
  third.number = 3;
  EXPECT_THAT(Numbers(Schedule({job, second, third}, free)), ElementsAre(1, 2))
      << "50 bytes are left for the third job";
}

TEST(QueuePlacementTest, JobTakesFewerWorkersIfMemoryIsShort) {
  FreeMembers free{.workers = {"w-0", "w-1", "w-2"}, .ps = {{"p-0", 0, 150, 500}}};
  WaitingJob job{.number = 1,
                 .workers_min = 1,
                 .workers_max = 3,
                 .ps_memory = {.bytes = 50, .bytes_per_worker = 50}};

  const auto placements = Schedule({job}, free);

  ASSERT_EQ(placements.size(), 1);
  EXPECT_THAT(placements[0].workers, ElementsAre("w-0", "w-1"));
  job.workers_min = 3;
  EXPECT_THAT(Schedule({job}, free), IsEmpty());
}

TEST(QueuePlacementTest, NothingIsReservedForAJobThatNoPsIsLargeEnoughFor) {
  const FreeMembers free{.workers = {"w-0"}, .ps = {{"p-0", 1, 50, 100}}, .workers_attached = 1};
  WaitingJob large{.number = 1, .ps_memory = {.bytes = 101}, .has_reservation = true};
  const WaitingJob small{.number = 2, .ps_memory = {.bytes = 10}};

  EXPECT_THAT(Numbers(Schedule({large, small}, free)), ElementsAre(2));
  large.ps_memory.bytes = 100;
  EXPECT_THAT(Schedule({large, small}, free), IsEmpty()) << "it fits when the other job has ended";
}

TEST(QueuePlacementTest, TellsWhetherAJobWaitsForMemoryOfPs) {
  const std::vector<FreeMembers::Ps> ps = {{"p-0", 1, 50, 100}, {"p-1", 0, 80, 80}};
  WaitingJob job{.number = 1, .ps = 1};

  EXPECT_EQ(FitOf(job, ps), MemoryFit::kFits) << "its need is not known";
  job.ps_memory.bytes = 80;
  EXPECT_EQ(FitOf(job, ps), MemoryFit::kFits);
  job.ps_memory.bytes = 81;
  EXPECT_EQ(FitOf(job, ps), MemoryFit::kWaits);
  job.ps_memory.bytes = 101;
  EXPECT_EQ(FitOf(job, ps), MemoryFit::kTooLittle);
  job.ps_memory.bytes = 81;
  job.ps = 2;
  EXPECT_EQ(FitOf(job, ps), MemoryFit::kTooLittle);
  job.ps = 3;
  EXPECT_EQ(FitOf(job, ps), MemoryFit::kFits) << "it waits for a third ps";
}

TEST(QueuePlacementTest, EachWaitHasItsCauseAndPosition) {
  FreeMembers free;
  free.workers = {"w-0", "w-1"};
  free.workers_attached = 6;
  free.ps = {{.name = "ps-0", .room_bytes = 100, .capacity_bytes = 100}};
  const WaitingJob many_workers{.number = 1, .workers_min = 4, .workers_max = 4};
  const WaitingJob many_ps{.number = 2, .ps = 3};
  const WaitingJob large{.number = 3, .ps_memory = {.bytes = 200}};
  const WaitingJob picky{.number = 4, .workers_max = 5, .settle_for_fewer = false};
  const WaitingJob urgent{.number = 5, .priority = 9, .workers_min = 1, .workers_max = 1};
  const WaitingJob long_waiting{
      .number = 6, .workers_min = 6, .workers_max = 6, .has_reservation = true};
  const WaitingJob last{.number = 7};

  const Decision decision =
      Decide({many_workers, many_ps, large, picky, urgent, long_waiting, last}, free);

  ASSERT_EQ(decision.placements.size(), 1);
  EXPECT_EQ(decision.placements[0].number, 5);
  std::vector<uint64_t> numbers;
  std::vector<WaitCause> causes;
  for (const Wait& wait : decision.waits) {
    numbers.push_back(wait.number);
    causes.push_back(wait.cause);
    EXPECT_EQ(wait.queue_length, 7);
    EXPECT_EQ(wait.workers_free, 1) << "the urgent job took the other";
    EXPECT_EQ(wait.workers_attached, 6);
  }
  EXPECT_EQ(numbers, (std::vector<uint64_t>{1, 2, 3, 4, 6, 7}));
  EXPECT_EQ(causes, (std::vector<WaitCause>{WaitCause::kWorkers, WaitCause::kPs,
                                            WaitCause::kPsMemory, WaitCause::kGathers,
                                            WaitCause::kWorkers, WaitCause::kItsTurn}));
  EXPECT_EQ(decision.waits[0].position, 2) << "behind the urgent one";
  EXPECT_EQ(decision.waits[5].reserved_for, 6);
}

}  // namespace
}  // namespace muster::queue_placement_test
