#include "services/coordinator/scheduling/ps_memory_accounting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace muster::ps_memory_accounting_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

v1::Hello Ps(const char* name, int64_t bytes) {
  v1::Hello hello;
  hello.set_member(name);
  hello.set_memory_bytes(bytes);
  return hello;
}

v1::JobPlan Plan(uint64_t job, uint32_t generation, int workers) {
  v1::JobPlan plan;
  plan.set_job_number(job);
  plan.set_generation(generation);
  for (int i = 0; i < workers; ++i) plan.add_workers();
  return plan;
}

MemoryByPs Memory(int64_t bytes, int64_t bytes_per_worker) {
  return {{"p-0", {.bytes = bytes, .bytes_per_worker = bytes_per_worker}}};
}

TEST(RoomTest, TakenBytesReduceTheRoomUnlessMemoryIsUnlimited) {
  EXPECT_EQ(RoomOf(Ps("p-0", 100), {{"p-0", 30}, {"p-1", 50}}), 70);
  EXPECT_EQ(RoomOf(Ps("p-0", 20), {{"p-0", 30}}), -10) << "it restarted with less memory";
  EXPECT_EQ(RoomOf(Ps("p-0", 100), {}), 100);
  EXPECT_EQ(RoomOf(Ps("p-0", 0), {{"p-0", 30}}), std::numeric_limits<int64_t>::max());
}

TEST(RoomTest, MostIsTheMaximumOfEachField) {
  const PsMemory most = MostOf(
      {{"p-0", {.bytes = 7, .bytes_per_worker = 1}}, {"p-1", {.bytes = 3, .bytes_per_worker = 2}}});
  EXPECT_EQ(most.bytes, 7);
  EXPECT_EQ(most.bytes_per_worker, 2);
  EXPECT_EQ(MostOf({}).With(3), 0);
}

TEST(PsMemoryAccountingTest, APlanTakesMemoryForEachOfItsWorkers) {
  PsMemoryAccounting accounting;
  accounting.Take(Plan(/*job=*/1, /*generation=*/1, /*workers=*/2), Memory(100, 10));
  accounting.Take(Plan(2, 1, 3),
                  {{"p-0", {.bytes = 5}}, {"p-1", {.bytes = 1, .bytes_per_worker = 1}}});
  EXPECT_THAT(accounting.SumOf({1, 2, 3}), ElementsAre(Pair("p-0", 125), Pair("p-1", 4)));
  EXPECT_THAT(accounting.SumOf({2}), ElementsAre(Pair("p-0", 5), Pair("p-1", 4)));

  accounting.Take(Plan(1, 2, 1), Memory(100, 10));
  EXPECT_THAT(accounting.SumOf({1}), ElementsAre(Pair("p-0", 110)))
      << "only the latest generation counts";
}

TEST(PsMemoryAccountingTest, KnowsAGenerationUntilItsJobEnds) {
  PsMemoryAccounting accounting;
  accounting.Take(Plan(1, 2, 1), Memory(1, 1));
  accounting.Take(Plan(2, 1, 1), Memory(1, 1));
  EXPECT_TRUE(accounting.Knows(Plan(1, 2, 1)));
  EXPECT_FALSE(accounting.Knows(Plan(1, 1, 1)));
  EXPECT_FALSE(accounting.Knows(Plan(3, 1, 1)));
  accounting.KeepOnly({2});
  EXPECT_FALSE(accounting.Knows(Plan(1, 2, 1)));
  EXPECT_TRUE(accounting.Knows(Plan(2, 1, 1)));
  EXPECT_THAT(accounting.SumOf({1}), IsEmpty());
}

TEST(PsMemoryAccountingTest, ANeedOverridesTheTakenMemoryUntilItExpiresOrTheJobIsPlanned) {
  PsMemoryAccounting accounting;
  const absl::Time now = absl::FromUnixSeconds(1000);
  const auto waits = [](uint64_t, int) { return true; };
  accounting.Take(Plan(1, 1, 1), Memory(5, 0));
  EXPECT_EQ(accounting.MemoryOf(1).at("p-0").bytes, 5);
  EXPECT_EQ(accounting.MostNeeded(1).bytes, 0);
  accounting.Need(1, /*ps=*/1, Memory(8, 0), now);
  EXPECT_EQ(accounting.MemoryOf(1).at("p-0").bytes, 8);
  EXPECT_EQ(accounting.MostNeeded(1).bytes, 8);
  EXPECT_THAT(accounting.SumOf({1}), ElementsAre(Pair("p-0", 5)))
      << "a need does not change what the job takes";

  accounting.ForgetNeeds(now + PsMemoryAccounting::kNeedAge - absl::Seconds(1), waits);
  EXPECT_EQ(accounting.MostNeeded(1).bytes, 8);
  accounting.ForgetNeeds(now + PsMemoryAccounting::kNeedAge, waits);
  EXPECT_EQ(accounting.MostNeeded(1).bytes, 0);
  EXPECT_EQ(accounting.MemoryOf(1).at("p-0").bytes, 5);

  accounting.Need(1, 1, Memory(8, 0), now);
  accounting.Take(Plan(1, 2, 1), Memory(9, 0));
  EXPECT_EQ(accounting.MemoryOf(1).at("p-0").bytes, 9);
  EXPECT_EQ(accounting.MostNeeded(1).bytes, 0);
  EXPECT_THAT(accounting.MemoryOf(2), IsEmpty());
}

TEST(PsMemoryAccountingTest, ForgetsNeedsOfJobsThatNoLongerWaitOrWantOtherPs) {
  PsMemoryAccounting accounting;
  const absl::Time now = absl::FromUnixSeconds(1000);
  for (const uint64_t job : {1, 2, 3})
    accounting.Need(job, /*ps=*/static_cast<int>(job), Memory(8, 0), now);
  accounting.ForgetNeeds(now, [](uint64_t job, int ps) { return job != 1 && ps != 2; });
  EXPECT_EQ(accounting.MostNeeded(1).bytes, 0);
  EXPECT_EQ(accounting.MostNeeded(2).bytes, 0);
  EXPECT_EQ(accounting.MostNeeded(3).bytes, 8);
}

}  // namespace
}  // namespace muster::ps_memory_accounting_test
