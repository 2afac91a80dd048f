#include "services/coordinator/scheduling/placement.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace muster::placement_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kNow = absl::FromUnixSeconds(1'000'000);
const absl::Time kLongAgo = kNow - absl::Hours(1);

// A cluster with these free workers and ps.
ClusterState Cluster(const std::vector<std::string>& workers, const std::vector<std::string>& ps) {
  ClusterState state{.now = kNow};
  state.free.workers = workers;
  state.free.workers_attached = static_cast<int>(workers.size());
  for (const std::string& name : ps) state.free.ps.push_back({.name = name});
  return state;
}

WaitingJob Queued(uint64_t number, int workers_min = 1, int workers_max = 0) {
  return {.number = number,
          .workers_min = workers_min,
          .workers_max = std::max(workers_min, workers_max),
          .since = kLongAgo};
}

// A job that has stopped and keeps p-0.
HaltedJob Halted(uint64_t number, const std::vector<std::string>& workers) {
  return {.request = {.number = number,
                      .workers = workers,
                      .workers_min = static_cast<int>(workers.size()),
                      .workers_max = static_cast<int>(workers.size()),
                      .ps = {"p-0"},
                      .keeps_ps = true},
          .ready_since = kLongAgo};
}

std::vector<uint64_t> NumbersOf(const std::vector<Placement>& placements) {
  std::vector<uint64_t> numbers;
  for (const Placement& placement : placements) numbers.push_back(placement.number);
  return numbers;
}

TEST(PlacementTest, ARecoveringJobGoesBeforeQueuedOnes) {
  ClusterState state = Cluster({"w-1"}, {"p-0"});
  state.queued = {Queued(1)};
  state.halted = {Halted(2, {"w-0", ""})};
  const PlacementDecisions decisions = Place(state);
  ASSERT_THAT(NumbersOf(decisions.resumes), ElementsAre(2));
  EXPECT_THAT(decisions.resumes[0].workers, ElementsAre("w-0", "w-1"));
  EXPECT_THAT(decisions.starts, IsEmpty());
  ASSERT_THAT(decisions.waits, SizeIs(1));
  EXPECT_EQ(decisions.waits[0].cause, WaitCause::kWorkers);
}

// Two recovering jobs cannot both try the same excluded worker.
TEST(PlacementTest, AnExcludedWorkerIsTriedByOneJob) {
  ClusterState state = Cluster({"w-1"}, {"p-0"});
  state.halted = {Halted(1, {"w-0", ""}), Halted(2, {"w-2", ""})};
  for (HaltedJob& job : state.halted) job.request.excluded = {"w-1"};
  EXPECT_THAT(NumbersOf(Place(state).resumes), ElementsAre(1));
}

// Job 2 keeps w-0 and needs two more workers. One is free.
TEST(PlacementTest, AFreeWorkerIsReservedForAJobThatLacksTwo) {
  const std::optional<absl::Time> kReadySince[] = {std::nullopt, kNow, kLongAgo};
  for (const std::optional<absl::Time>& ready_since : kReadySince) {
    ClusterState state = Cluster({"w-1"}, {"p-0"});
    state.free.workers_attached = 3;
    state.queued = {Queued(1)};
    state.halted = {Halted(2, {"", "w-0", ""})};
    state.halted[0].ready_since = ready_since;
    PlacementDecisions decisions = Place(state);
    EXPECT_EQ(decisions.reserved_for, 2);
    EXPECT_THAT(decisions.starts, IsEmpty());
    ASSERT_THAT(decisions.waits, SizeIs(1));
    EXPECT_EQ(decisions.waits[0].cause, WaitCause::kItsTurn);
    EXPECT_EQ(decisions.waits[0].reserved_for, 2);
    EXPECT_THAT(decisions.notices, SizeIs(ready_since == kLongAgo ? 1 : 0));

    state.free.workers_attached = 2;
    decisions = Place(state);
    EXPECT_EQ(decisions.reserved_for, 0) << "the fleet is too small for it";
    EXPECT_THAT(decisions.starts, SizeIs(1));
  }
}

TEST(PlacementTest, AJobThatCanContinueNowGoesBeforeOneThatCannotYet) {
  ClusterState state = Cluster({"w-0"}, {"p-0"});
  state.halted = {Halted(1, {""}), Halted(2, {""})};
  state.halted[0].ready_since = std::nullopt;
  EXPECT_THAT(NumbersOf(Place(state).resumes), ElementsAre(2));
}

TEST(PlacementTest, AJobSettlesForFewerWorkersAfterAMoment) {
  const struct {
    absl::Duration waited;
    bool all_have_connected;
    bool starts;
  } kCases[] = {{kGatherTime, true, true},
                {kGatherTime - absl::Milliseconds(1), true, false},
                {kGatherTime, false, false}};
  for (const auto& [waited, all_have_connected, starts] : kCases) {
    SCOPED_TRACE(absl::FormatDuration(waited));
    ClusterState state = Cluster({"w-0"}, {"p-0"});
    state.all_have_connected = all_have_connected;
    state.queued = {Queued(1, /*workers_min=*/1, /*workers_max=*/2)};
    state.queued[0].since = kNow - waited;
    EXPECT_THAT(Place(state).starts, SizeIs(starts ? 1 : 0));
    state.queued.clear();
    state.halted = {Halted(2, {"w-1", "w-2", ""})};
    state.halted[0].request.workers_min = 2;
    state.free.workers.clear();
    state.halted[0].ready_since = kNow - waited;
    EXPECT_THAT(Place(state).resumes, SizeIs(starts ? 1 : 0));
  }
}

TEST(PlacementTest, AJobThatWaitsTooLongIsStoppedWhenAllMembersAreBack) {
  const struct {
    bool waits_too_long, all_are_back, stops;
  } kCases[] = {{true, true, true}, {true, false, false}, {false, true, false}};
  for (const auto& [waits_too_long, all_are_back, stops] : kCases) {
    ClusterState state = Cluster({}, {"p-0"});
    state.all_are_back = all_are_back;
    state.queued = {Queued(1)};
    state.queued[0].waits_too_long = waits_too_long;
    state.halted = {Halted(2, {"w-0", ""})};
    state.halted[0].waits_too_long = waits_too_long;
    state.committing = {{.number = 3, .since = kLongAgo, .waits_too_long = waits_too_long}};
    absl::btree_map<uint64_t, WaitNotice> notices;
    for (const WaitNotice& notice : Place(state).notices) notices[notice.number] = notice;
    EXPECT_EQ(notices[1].stops, stops);
    EXPECT_EQ(notices[2].stops, stops);
    EXPECT_EQ(notices[2].phase, JobPhase::kWaitsForMembers);
    EXPECT_EQ(notices[2].what, "members: it has 1 worker and needs 2, it has 1 of its 1 ps");
    EXPECT_EQ(notices[3].stops, stops);
    EXPECT_THAT(notices[3].what, HasSubstr("its checkpoint, which is still being committed"));
  }
}

TEST(PlacementTest, AShortCommitMayOutlastTheStartTimeout) {
  ClusterState state = Cluster({}, {});
  state.committing = {
      {.number = 3, .since = kNow - kFilesTakeMax + absl::Seconds(1), .waits_too_long = true}};
  EXPECT_THAT(Place(state).notices, IsEmpty());
}

TEST(PlacementTest, AJobThatRecoversToStopAndLacksWorkersIsTold) {
  ClusterState state = Cluster({}, {"p-0"});
  state.halted = {Halted(1, {""})};
  state.halted[0].recovers_to_stop = true;
  const PlacementDecisions decisions = Place(state);
  ASSERT_THAT(decisions.notices, SizeIs(1));
  EXPECT_EQ(decisions.notices[0].phase, JobPhase::kWaitsForMembers);
  EXPECT_FALSE(decisions.notices[0].stops);
  EXPECT_EQ(decisions.reserved_for, 0);
}

TEST(PlacementTest, AQueuedJobIsToldOfMemory) {
  const struct {
    int64_t room, capacity;
    JobPhase phase;
  } kCases[] = {{5, 20, JobPhase::kWaitsForMemory}, {5, 8, JobPhase::kMemoryTooSmall}};
  for (const auto& [room, capacity, phase] : kCases) {
    ClusterState state = Cluster({"w-0"}, {"p-0"});
    state.free.ps[0] = {.name = "p-0", .room_bytes = room, .capacity_bytes = capacity};
    state.queued = {Queued(1)};
    state.queued[0].ps_memory = {.bytes = 10};
    const PlacementDecisions decisions = Place(state);
    ASSERT_THAT(decisions.notices, SizeIs(1));
    EXPECT_EQ(decisions.notices[0].phase, phase);
  }
  ClusterState state = Cluster({}, {"p-0"});
  state.queued = {Queued(1)};
  EXPECT_THAT(Place(state).notices, IsEmpty()) << "its record says already what it waits for";
  state.queued[0].is_told_of_more = true;
  EXPECT_EQ(Place(state).notices.at(0).phase, JobPhase::kWaitsForMembers);
}

// Jobs 1 and 2 run with spare workers. Job 3 has waited for two workers.
ClusterState ClusterWithSpareWorkers() {
  ClusterState state = Cluster({}, {"p-0"});
  state.free.workers_attached = 5;
  state.running = {{.number = 1, .workers_to_yield = 1}, {.number = 2, .workers_to_yield = 2}};
  state.queued = {Queued(3, /*workers_min=*/2)};
  return state;
}

TEST(PlacementTest, TheJobWithTheMostSpareWorkersYieldsThemFirst) {
  ClusterState state = ClusterWithSpareWorkers();
  PlacementDecisions decisions = Place(state);
  ASSERT_THAT(decisions.yields, SizeIs(1));
  EXPECT_EQ(decisions.yields[0].number, 2);
  EXPECT_EQ(decisions.yields[0].workers, 2);
  EXPECT_EQ(decisions.yields[0].beneficiary, 3);

  state.queued = {Queued(3, /*workers_min=*/3)};
  decisions = Place(state);
  ASSERT_THAT(decisions.yields, SizeIs(2));
  EXPECT_EQ(decisions.yields[1].number, 1);
}

TEST(PlacementTest, NoWorkerIsYieldedInVain) {
  const std::pair<const char*, void (*)(ClusterState&)> kCases[] = {
      {"it has not waited for long",
       [](ClusterState& state) { state.queued[0].since = kNow - absl::Seconds(59); }},
      {"too few are spare", [](ClusterState& state) { state.queued = {Queued(3, 4)}; }},
      {"the others go before it", [](ClusterState& state) { state.queued[0].priority = -1; }},
      {"it lacks a ps as well", [](ClusterState& state) { state.free.ps.clear(); }},
      {"its devices matter", [](ClusterState& state) { state.queued[0].unsuitable = {"w"}; }},
      {"another job recovers", [](ClusterState& state) { state.any_recovers = true; }},
      {"workers are on their way", [](ClusterState& state) { state.workers_let_go = true; }},
      {"it is being stopped", [](ClusterState& state) { state.queued[0].waits_too_long = true; }},
  };
  for (const auto& [why, change] : kCases) {
    ClusterState state = ClusterWithSpareWorkers();
    change(state);
    EXPECT_THAT(Place(state).yields, IsEmpty()) << why;
  }
}

// Job 1 runs with w-0 and can use two more workers.
RunningJob Growing() {
  RunningJob job{.number = 1};
  job.growth = {.request = {.number = 1,
                            .workers = {"w-0"},
                            .workers_min = 1,
                            .workers_max = 3,
                            .ps = {"p-0"},
                            .keeps_ps = true}};
  return job;
}

TEST(PlacementTest, FreeWorkersWarmUpAndThenJoin) {
  ClusterState state = Cluster({"w-1"}, {"p-0"});
  state.running = {Growing()};
  PlacementDecisions decisions = Place(state);
  ASSERT_THAT(decisions.warm_ups, SizeIs(1));
  EXPECT_THAT(decisions.warm_ups[0].placement.workers, ElementsAre("w-0", "w-1"));
  EXPECT_EQ(decisions.warm_ups[0].newcomers, 1);

  state.running[0].growth->warming_up = {"w-1"};
  decisions = Place(state);
  EXPECT_THAT(decisions.warm_ups, IsEmpty()) << "it is under way";
  EXPECT_THAT(decisions.joins, IsEmpty());

  state.free.workers.push_back("w-2");
  EXPECT_THAT(Place(state).warm_ups, IsEmpty()) << "it joins the next warm-up";

  state.running[0].growth->is_warm = true;
  EXPECT_THAT(Place(state).joins, ElementsAre(1));

  state.queued = {Queued(2, /*workers_min=*/3)};
  EXPECT_THAT(Place(state).joins, IsEmpty()) << "a job waits for workers";
  state.queued.clear();
  state.halted = {Halted(3, {"w-3", "", "", ""})};
  state.free.workers_attached = 4;
  EXPECT_THAT(Place(state).joins, IsEmpty()) << "a recovering job waits for workers";
}

// Job 1 runs on p-0 without its replica.
RunningJob WithoutReplica() {
  RunningJob job{.number = 1};
  job.replication = {
      .request = {.number = 1, .workers = {"w-0"}, .ps = {"p-0"}, .keeps_ps = true, .ps_wanted = 2},
      .primary = {"p-0"}};
  return job;
}

TEST(PlacementTest, ALackingReplicaIsSearchedIfItCanBePlaced) {
  ClusterState state = Cluster({}, {"p-0", "p-1"});
  state.running = {WithoutReplica()};
  const PlacementDecisions decisions = Place(state);
  ASSERT_THAT(NumbersOf(decisions.replica_searches), ElementsAre(1));
  EXPECT_THAT(decisions.replica_searches[0].ps, ElementsAre("p-0", "p-1"));

  const std::pair<const char*, void (*)(ClusterState&)> kCases[] = {
      {"there is no other ps", [](ClusterState& state) { state.free.ps.pop_back(); }},
      {"a plan is about to use it", [](ClusterState& state) { state.ps_in_plans = {"p-1"}; }},
      {"a job starts on it",
       [](ClusterState& state) {
         state.free.workers = {"w-1"};
         state.free.ps[0].jobs = 1;
         state.queued = {Queued(2)};
       }},
      {"it has a plan already", [](ClusterState& state) { state.running[0].has_task = true; }},
      {"it is halted for workers",
       [](ClusterState& state) {
         state.free.workers = {"w-1"};
         state.running[0].growth = Growing().growth;
         state.running[0].growth->warming_up = {"w-1"};
         state.running[0].growth->is_warm = true;
       }},
  };
  for (const auto& [why, change] : kCases) {
    ClusterState changed = state;
    change(changed);
    EXPECT_THAT(Place(changed).replica_searches, IsEmpty()) << why;
  }
}

TEST(PlacementTest, TheLastOfTwoEntangledJobsYields) {
  ClusterState state = Cluster({}, {"p-0"});
  state.free.workers_attached = 2;
  state.halted = {Halted(1, {"w-0", ""}), Halted(2, {"w-1", ""})};
  PlacementDecisions decisions = Place(state);
  ASSERT_TRUE(decisions.yield_all.has_value());
  EXPECT_EQ(decisions.yield_all->number, 2);

  const std::pair<const char*, void (*)(ClusterState&)> kCases[] = {
      {"new workers may solve it",
       [](ClusterState& state) { state.halted[0].ready_since = kNow - absl::Seconds(59); }},
      {"another job yields", [](ClusterState& state) { state.any_yields = true; }},
      {"members may come back", [](ClusterState& state) { state.all_are_back = false; }},
  };
  for (const auto& [why, change] : kCases) {
    ClusterState changed = state;
    change(changed);
    EXPECT_FALSE(Place(changed).yield_all.has_value()) << why;
  }
}

TEST(PlacementTest, AFreeWorkerReplacesTheMissingOneOfOneJob) {
  FreeMembers free;
  free.workers = {"w-1", "w-2"};
  EXPECT_THAT(ReplaceableJobs({{.number = 1, .workers = 2, .excluded = {"w-1"}},
                               {.number = 2, .workers = 1, .excluded = {"w-1"}},
                               {.number = 3, .workers = 1},
                               {.number = 4, .workers = 1},
                               {.number = 5, .workers = 0}},
                              free),
              ElementsAre(2, 3, 5));
}

}  // namespace
}  // namespace muster::placement_test
