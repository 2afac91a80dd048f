#include "services/coordinator/membership/lease_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"
#include "services/coordinator/testing/made_up_jobs.h"

namespace muster::lease_table_test {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;

constexpr absl::Duration kLease = absl::Seconds(5);
const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(LeaseTableTest, AMemberIsLostAfterASilenceLongerThanItsLease) {
  LeaseTable table(kLease);
  ASSERT_TRUE(table.Attach(HelloOf("w", "a"), kStart).ok());
  table.Renew("w", {}, kStart + absl::Seconds(3));

  EXPECT_THAT(table.TakeExpired(kStart + absl::Seconds(8)), IsEmpty());
  EXPECT_THAT(table.TakeExpired(kStart + absl::Seconds(9)),
              ElementsAre(Field(&LeaseTable::Expired::member, "w")));
  EXPECT_EQ(table.Find("w"), nullptr);
}

// The situation after SIGSTOP: reports wait in the sockets, and the check may run first.
TEST(LeaseTableTest, AddsTheDelayOfALateCheckToEveryLease) {
  LeaseTable table(kLease);
  ASSERT_TRUE(table.Attach(HelloOf("w", "a"), kStart).ok());
  ASSERT_THAT(table.TakeExpired(kStart + absl::Seconds(2)), IsEmpty());

  absl::Time now = kStart + absl::Seconds(32);
  EXPECT_THAT(table.TakeExpired(now), IsEmpty());
  EXPECT_EQ(table.Find("w")->report_time, kStart) << "what is shown is the report";
  for (int check = 0; check < 5; ++check) {
    now += LeaseTable::kCheckInterval;
    ASSERT_THAT(table.TakeExpired(now), IsEmpty()) << now - kStart;
  }
  EXPECT_THAT(table.TakeExpired(now + LeaseTable::kCheckInterval),
              ElementsAre(Field(&LeaseTable::Expired::member, "w")));
}

TEST(LeaseTableTest, AddsNoMoreThanTheDelay) {
  LeaseTable table(kLease);
  ASSERT_TRUE(table.Attach(HelloOf("w", "a"), kStart).ok());
  ASSERT_THAT(table.TakeExpired(kStart), IsEmpty());
  absl::Time now = kStart + absl::Seconds(30);
  table.Renew("w", {}, now);  // before the check

  ASSERT_THAT(table.TakeExpired(now), IsEmpty());
  while (now < kStart + absl::Seconds(35)) {
    now += LeaseTable::kCheckInterval;
    ASSERT_THAT(table.TakeExpired(now), IsEmpty()) << now - kStart;
  }
  EXPECT_THAT(table.TakeExpired(now + absl::Milliseconds(1)),
              ElementsAre(Field(&LeaseTable::Expired::member, "w")));
}

TEST(LeaseTableTest, TheSameIncarnationReturnsAfterABreak) {
  LeaseTable table(kLease);
  ASSERT_TRUE(table.Attach(HelloOf("w", "a"), kStart).ok());
  table.Disconnect("w");
  EXPECT_FALSE(table.Find("w")->attached);

  EXPECT_EQ(*table.Attach(HelloOf("w", "a"), kStart), LeaseTable::Arrival::kReturned);
  EXPECT_TRUE(table.Find("w")->attached);
}

v1::Hello WithOrdinal(v1::Hello hello, uint64_t ordinal) {
  hello.set_ordinal(ordinal);
  return hello;
}

TEST(LeaseTableTest, ALeavingMemberStaysMarkedButANewProcessIsNot) {
  LeaseTable table(kLease);
  ASSERT_TRUE(table.Attach(HelloOf("w", "a"), kStart).ok());
  table.SetLeaving("w");
  table.Disconnect("w");

  ASSERT_TRUE(table.Attach(HelloOf("w", "a"), kStart).ok());
  EXPECT_TRUE(table.Find("w")->leaving);
  table.Disconnect("w");
  ASSERT_TRUE(table.Attach(HelloOf("w", "b"), kStart).ok());
  EXPECT_FALSE(table.Find("w")->leaving);
}

TEST(LeaseTableTest, AProcessWithAnOpenStreamKeepsTheName) {
  LeaseTable table(kLease);
  ASSERT_TRUE(table.Attach(HelloOf("w", "a"), kStart).ok());

  const auto refused = table.Attach(HelloOf("w", "b"), kStart);

  EXPECT_TRUE(absl::IsUnavailable(refused.status())) << "to be tried again";
  EXPECT_EQ(ReasonOf(refused.status()), "NAME_IN_USE");
  EXPECT_EQ(table.Find("w")->hello.incarnation(), "a");
  table.Disconnect("w");
  EXPECT_EQ(*table.Attach(HelloOf("w", "b"), kStart), LeaseTable::Arrival::kReplaced);
}

TEST(LeaseTableTest, AReplacedProcessIsRefusedPermanently) {
  LeaseTable table(kLease);
  ASSERT_TRUE(table.Attach(HelloOf("w", "a"), kStart).ok());
  const v1::Hello zombie = WithOrdinal(HelloOf("w", "a"), table.Find("w")->ordinal);
  table.Disconnect("w");
  ASSERT_TRUE(table.Attach(HelloOf("w", "b"), kStart).ok());
  EXPECT_EQ(ReasonOf(table.Attach(zombie, kStart).status()), "REPLACED");
  table.Remove("w");

  const auto late = table.Attach(zombie, kStart);

  EXPECT_TRUE(absl::IsFailedPrecondition(late.status()));
  EXPECT_EQ(ReasonOf(late.status()), "REPLACED") << "though the name is free";
}

TEST(LeaseTableTest, ProcessesStayOrderedAfterARestart) {
  const v1::Hello older = WithOrdinal(HelloOf("w", "a"), 3),
                  newer = WithOrdinal(HelloOf("w", "b"), 4);
  LeaseTable remembers(kLease, {{"w", 4}}, /*next_ordinal=*/1000);
  EXPECT_EQ(ReasonOf(remembers.Attach(older, kStart).status()), "REPLACED");
  ASSERT_TRUE(remembers.Attach(newer, kStart).ok());
  EXPECT_EQ(remembers.Find("w")->ordinal, 4) << "it keeps its own";

  LeaseTable forgot(kLease, {}, /*next_ordinal=*/1000);  // the ordinal was not stored in time
  ASSERT_TRUE(forgot.Attach(older, kStart).ok());
  EXPECT_EQ(*forgot.Attach(newer, kStart), LeaseTable::Arrival::kReplaced)
      << "whatever the older one's stream";
  EXPECT_EQ(ReasonOf(forgot.Attach(older, kStart).status()), "REPLACED");
}

TEST(LeaseTableTest, RefusesAnOrdinalThatWasNeverGiven) {
  LeaseTable table(kLease);

  EXPECT_EQ(ReasonOf(table.Attach(WithOrdinal(HelloOf("w", "a"), ~uint64_t{0}), kStart).status()),
            "HELLO_INVALID");
}

// Members of another build or another release attach. The lease table does not compare versions.
TEST(LeaseTableTest, AMemberOfAnyVersionAttaches) {
  LeaseTable table(kLease);
  int members = 0;
  for (const char* version : {"0.3.0", "0.3.0+14.g71f0bcc9d2a1.dirty", "0.2.0", "1.0.0-rc.1"}) {
    v1::Hello hello = HelloOf(absl::StrCat("w", members++), "a");
    hello.set_version(version);
    EXPECT_TRUE(table.Attach(hello, kStart).ok()) << version;
    EXPECT_EQ(table.Find(hello.member())->hello.version(), version);
  }
}

TEST(LeaseTableTest, RefusesInvalidHellos) {
  LeaseTable table(kLease);
  v1::Hello ps = HelloOf("p", "a"), nameless_process = HelloOf("w", "a");
  ps.clear_addresses();  // a ps without shard threads
  nameless_process.clear_incarnation();

  EXPECT_TRUE(absl::IsInvalidArgument(table.Attach(ps, kStart).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(table.Attach(HelloOf("", "a"), kStart).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(table.Attach(HelloOf("a\nb", "a"), kStart).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(table.Attach(nameless_process, kStart).status()));
}

TEST(LeaseTableTest, RefusesHellosWithLongOrUnprintableText) {
  const std::string endless(1 << 20, 'x');
  std::vector<v1::Hello> hellos(8, HelloOf("w", "a"));
  hellos[0].set_host(endless);
  hellos[1].set_metrics_url(endless);
  hellos[2].set_version(endless);
  hellos[3].set_transport(endless);
  hellos[4].add_devices(endless);
  for (int i = 0; i < 2000; ++i) hellos[5].add_devices("cpu");
  hellos[6].add_addresses(endless);
  hellos[7].set_host("line\nbreak");
  LeaseTable table(kLease);

  for (const v1::Hello& hello : hellos) {
    const auto refused = table.Attach(hello, kStart);
    EXPECT_EQ(ReasonOf(refused.status()), "HELLO_INVALID")
        << hello.ShortDebugString().substr(0, 80);
    EXPECT_LT(refused.status().message().size(), 200) << "does not repeat the text";
  }
  EXPECT_TRUE(table.members().empty());
}

// Two members, and a clock of the coordinator that calls TakeExpired() on time.
class PartitionTest : public ::testing::Test {
 protected:
  PartitionTest() {
    for (const char* name : {"a", "b"}) EXPECT_TRUE(table_.Attach(HelloOf(name, "x"), now_).ok());
  }
  // Advances the time without reports. Returns the members that are lost.
  std::vector<std::string> Pass(absl::Duration time) {
    std::vector<std::string> lost;
    for (const absl::Time end = now_ + time; now_ < end;) {
      now_ += absl::Milliseconds(200);
      for (const LeaseTable::Expired& expired : table_.TakeExpired(now_)) {
        lost.push_back(expired.member);
      }
    }
    return lost;
  }

  absl::Time now_ = kStart;
  LeaseTable table_{kLease};
};

TEST_F(PartitionTest, APartitionedCoordinatorLosesNoMember) {
  EXPECT_THAT(Pass(absl::Milliseconds(800)), IsEmpty());
  table_.Renew("b", {}, now_);  // members report at different times
  EXPECT_FALSE(table_.partitioned());
  EXPECT_THAT(Pass(absl::Seconds(12)), IsEmpty());
  EXPECT_TRUE(table_.partitioned());
  // Members that notice the partition break their streams and reattach one after the other.
  table_.Disconnect("a");
  table_.Disconnect("b");
  EXPECT_THAT(Pass(absl::Seconds(1)), IsEmpty());
  ASSERT_TRUE(table_.Attach(HelloOf("b", "x"), now_).ok());
  EXPECT_THAT(Pass(absl::Seconds(4)), IsEmpty());
  EXPECT_FALSE(table_.partitioned());
  ASSERT_TRUE(table_.Attach(HelloOf("a", "x"), now_).ok());
  table_.Renew("b", {}, now_);
  EXPECT_THAT(Pass(absl::Seconds(2)), IsEmpty());
}

TEST_F(PartitionTest, AMemberThatDoesNotReturnWithTheOthersIsLost) {
  EXPECT_THAT(Pass(absl::Seconds(10)), IsEmpty());
  for (int second = 0; second < 5; ++second) {
    table_.Renew("b", {}, now_);
    EXPECT_THAT(Pass(absl::Seconds(1)), IsEmpty());
  }
  table_.Renew("b", {}, now_);
  EXPECT_THAT(Pass(absl::Seconds(1)), ElementsAre("a"));
}

TEST_F(PartitionTest, LosesAllMembersAfterALongPartition) {
  EXPECT_THAT(Pass(LeaseTable::kPartitionMax), IsEmpty());
  EXPECT_THAT(Pass(absl::Milliseconds(200)), ElementsAre("a", "b"));
  EXPECT_FALSE(table_.partitioned());
}

// The stream of a process that dies breaks at once. One open stream is too few for a partition.
TEST_F(PartitionTest, BrokenStreamsMeanThatMembersDied) {
  table_.Disconnect("a");
  EXPECT_THAT(Pass(absl::Seconds(5.2)), ElementsAre("a", "b"));
}

TEST_F(PartitionTest, OneReportShowsThatTheNetworkWorks) {
  for (int second = 0; second < 5; ++second) {
    EXPECT_THAT(Pass(absl::Seconds(1)), IsEmpty());
    table_.Renew("b", {}, now_);
  }
  EXPECT_THAT(Pass(absl::Seconds(1)), ElementsAre("a"));
}

}  // namespace
}  // namespace muster::lease_table_test
