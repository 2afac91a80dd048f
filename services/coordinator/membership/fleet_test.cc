#include "services/coordinator/membership/fleet.h"

#include <gtest/gtest.h>

#include "lib/status/status.h"
#include "services/coordinator/testing/made_up_jobs.h"

namespace muster::fleet_test {
namespace {

constexpr absl::Duration kLease = absl::Seconds(5);
const absl::Time kStart = absl::FromUnixSeconds(1000);

Fleet::Options Terms(uint64_t term) { return {.cluster = "c-1", .term = term, .lease = kLease}; }

std::shared_ptr<StreamWaker> Waker(int* wakes) {
  return std::make_shared<StreamWaker>([wakes] { ++*wakes; });
}

v1::Directive Release() {
  v1::Directive directive;
  directive.set_job("line-1");
  directive.mutable_release();
  return directive;
}

TEST(FleetTest, TheFirstDirectiveIsTheWelcomeWithTermAndLease) {
  Fleet fleet(Terms(7));
  int wakes = 0;

  const auto arrival = fleet.Attach(HelloOf("w-0", "1"), Waker(&wakes), kStart);
  fleet.Send("w-0", {Release(), nullptr});

  ASSERT_TRUE(arrival.ok()) << arrival.status();
  const auto directives = arrival->attachment->TakeDirectives();
  ASSERT_EQ(directives.size(), 2);
  EXPECT_EQ(directives[0].directive.welcome().lease_millis(), 5000);
  EXPECT_EQ(directives[0].directive.welcome().report_millis(), 1000);
  EXPECT_EQ(directives[0].directive.welcome().cluster(), "c-1");
  EXPECT_EQ(directives[0].directive.welcome().ordinal(), arrival->ordinal);
  EXPECT_TRUE(arrival->is_first);
  EXPECT_TRUE(directives[1].directive.has_release());
  for (const MemberDirective& told : directives) EXPECT_EQ(told.directive.term(), 7);
  EXPECT_EQ(wakes, 1) << "a new stream reads its outbox without being woken";
}

TEST(FleetTest, DirectivesGoToTheNewestStreamAndTheOlderOneIsClosed) {
  Fleet fleet(Terms(1));
  int old_wakes = 0, new_wakes = 0;
  const auto older = fleet.Attach(HelloOf("w-0", "1"), Waker(&old_wakes), kStart);

  const auto newer = fleet.Attach(HelloOf("w-0", "1"), Waker(&new_wakes), kStart);
  fleet.Send("w-0", {Release(), nullptr});

  ASSERT_TRUE(newer.ok()) << newer.status();
  EXPECT_FALSE(newer->replaces_member) << "the same process came back";
  EXPECT_EQ(newer->displaced, older->attachment);
  EXPECT_EQ(ReasonOf(older->attachment->closed()), "REPLACED");
  EXPECT_EQ(ReasonOf(fleet.Renew(*older->attachment, {}, kStart)), "REPLACED");
  EXPECT_EQ(older->attachment->TakeDirectives().size(), 1) << "its welcome";
  EXPECT_EQ(new_wakes, 1);
  EXPECT_EQ(old_wakes, 0) << "the caller wakes it after it has released its locks";
  EXPECT_EQ(fleet.Detach(*older->attachment, Fleet::Departure::kOrderly), Fleet::Loss::kNothing);
  EXPECT_TRUE(fleet.IsAttached(HelloOf("w-0", "1")))
      << "the end of the older stream does not end the newer one";
}

TEST(FleetTest, ABrokenStreamKeepsTheLeaseButAGoodbyeEndsIt) {
  Fleet fleet(Terms(1));
  int wakes = 0;
  const auto first = fleet.Attach(HelloOf("w-0", "1"), Waker(&wakes), kStart);
  EXPECT_EQ(fleet.Detach(*first->attachment, Fleet::Departure::kBroken), Fleet::Loss::kStream);
  EXPECT_FALSE(fleet.IsAttached(HelloOf("w-0", "1")));
  EXPECT_EQ(fleet.members().size(), 1);

  const auto second = fleet.Attach(HelloOf("w-0", "1"), Waker(&wakes), kStart);
  EXPECT_TRUE(fleet.IsAttached(HelloOf("w-0", "1")));
  EXPECT_FALSE(fleet.IsAttached(HelloOf("w-0", "2"))) << "that would be another process";

  EXPECT_EQ(fleet.Detach(*second->attachment, Fleet::Departure::kOrderly), Fleet::Loss::kMember);
  EXPECT_TRUE(fleet.members().empty());
}

TEST(FleetTest, AMemberIsRemovedWhenItsLeaseExpires) {
  Fleet fleet(Terms(1));
  int wakes = 0;
  const auto arrival = fleet.Attach(HelloOf("w-0", "1"), Waker(&wakes), kStart);
  ASSERT_TRUE(fleet.Renew(*arrival->attachment, {"line-1"}, kStart + absl::Seconds(3)).ok());

  EXPECT_TRUE(fleet.TakeExpired(kStart + absl::Seconds(8)).empty());
  const auto expiries = fleet.TakeExpired(kStart + absl::Seconds(9));

  ASSERT_EQ(expiries.size(), 1);
  EXPECT_EQ(expiries[0].member, "w-0");
  EXPECT_EQ(expiries[0].attachment, arrival->attachment);
  EXPECT_EQ(arrival->attachment->closed().message(), "w-0: it did not report for its lease of 5s");
  EXPECT_TRUE(fleet.members().empty());
}

TEST(FleetTest, RefusesAMemberOfAnotherClusterOrALaterTermWithAdvice) {
  Fleet fleet(Terms(5));
  int wakes = 0;
  v1::Hello hello = HelloOf("w-0", "1");
  hello.set_cluster("c-2");
  const absl::Status changed = fleet.Attach(hello, Waker(&wakes), kStart).status();
  EXPECT_EQ(ReasonOf(changed), "CLUSTER_CHANGED");
  EXPECT_TRUE(absl::IsFailedPrecondition(changed));

  hello.set_cluster("c-1");
  hello.set_term(6);
  const absl::Status outdated = fleet.Attach(hello, Waker(&wakes), kStart).status();
  EXPECT_EQ(ReasonOf(outdated), "COORDINATOR_OUTDATED");
  EXPECT_TRUE(absl::IsUnavailable(outdated)) << "the later one may come back";

  hello.set_term(4);
  EXPECT_TRUE(fleet.Attach(hello, Waker(&wakes), kStart).ok());
}

TEST(FleetTest, AReturningMemberKeepsItsOrdinal) {
  Fleet fleet(Terms(2));
  int wakes = 0;
  const auto first = fleet.Attach(HelloOf("w-0", "1"), Waker(&wakes), kStart);
  v1::Hello again = HelloOf("w-0", "1");
  again.set_ordinal(first->ordinal);

  Fleet restarted(Terms(3));
  const auto second = restarted.Attach(again, Waker(&wakes), kStart);
  const auto another = restarted.Attach(HelloOf("w-0", "1"), Waker(&wakes), kStart);

  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->ordinal, first->ordinal);
  EXPECT_FALSE(second->is_first);
  EXPECT_EQ(another->ordinal, first->ordinal) << "the same process without knowing it";
}

}  // namespace
}  // namespace muster::fleet_test
