#include "services/coordinator/operations/membership.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "lib/status/status.h"
#include "services/coordinator/operations/checkpointer.h"
#include "services/coordinator/testing/registry_fixture.h"

namespace muster::membership_test {
namespace {

constexpr absl::Duration kLease = absl::Seconds(5);  // of the fixture's fleet

class MembershipTest : public RegistryFixture {
 protected:
  absl::StatusOr<std::shared_ptr<Attachment>> Attach(const v1::Hello& hello) {
    v1::MemberReport report;
    *report.mutable_hello() = hello;
    return membership_.Attach(report, std::make_shared<StreamWaker>([this] { ++woken_; }));
  }
  static v1::MemberReport ReportOf(const std::string& job) {
    v1::MemberReport report;
    report.add_jobs()->set_job(job);
    return report;
  }
  // Returns true if the stream has got a leave directive since the last call.
  bool IsToldToLeave(Attachment& stream) {
    registry_->changes().AwaitAll();
    return std::ranges::any_of(stream.TakeDirectives(), [](const MemberDirective& told) {
      return told.directive.has_leave();
    });
  }
  int members() const { return membership_.ListMembers().members_size(); }

  Checkpointer checkpoints_{registry_.get(), &series_, &coordinator_metrics_};
  Membership membership_{{.registry = registry_.get(),
                          .fleet = fleet_.get(),
                          .checkpoints = &checkpoints_,
                          .metrics = &coordinator_metrics_}};
  int woken_ = 0;
};

TEST_F(MembershipTest, RefusesAStreamWithoutHello) {
  const auto attached = membership_.Attach(ReportOf("line-1"), nullptr);
  EXPECT_EQ(ReasonOf(attached.status()), "HELLO_INVALID");
  EXPECT_EQ(members(), 0);
}

TEST_F(MembershipTest, AReportRenewsTheLease) {
  const auto worker = Attach(Hello("w-0"));
  ASSERT_TRUE(worker.ok()) << worker.status();
  for (int i = 0; i < 3; ++i) {
    now_ += kLease * 0.9;
    EXPECT_TRUE(membership_.Report(**worker, {}).ok());
    membership_.ExpireLeases();
  }
  EXPECT_EQ(members(), 1);
  EXPECT_EQ(woken_, 0);
}

TEST_F(MembershipTest, AnExpiredLeaseLosesTheMemberAndEndsItsStream) {
  const auto worker = Attach(Hello("w-0"));
  now_ += kLease * 1.1;

  membership_.ExpireLeases();

  EXPECT_EQ(members(), 0);
  EXPECT_EQ(woken_, 1);
  EXPECT_EQ(ReasonOf((*worker)->closed()), "LEASE_EXPIRED");
  EXPECT_EQ(ReasonOf(membership_.Report(**worker, {})), "LEASE_EXPIRED");
}

TEST_F(MembershipTest, AGoodbyeRemovesTheMemberAtOnceButABrokenStreamDoesNot) {
  const auto polite = Attach(Hello("w-0")), broken = Attach(Hello("w-1"));
  membership_.Detach(**polite, Fleet::Departure::kOrderly);
  membership_.Detach(**broken, Fleet::Departure::kBroken);

  EXPECT_EQ(members(), 1);
  now_ += kLease * 1.1;
  membership_.ExpireLeases();
  EXPECT_EQ(members(), 0);
}

TEST_F(MembershipTest, ADisplacedStreamIsWokenAndIgnored) {
  const auto before = Attach(Hello("w-0"));
  membership_.Detach(**before, Fleet::Departure::kBroken);
  v1::Hello again = Hello("w-0");
  again.set_incarnation("w-0-2");

  const auto after = Attach(again);

  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_TRUE(membership_.Report(**after, {}).ok());
  ASSERT_EQ(members(), 1);
  EXPECT_EQ(membership_.ListMembers().members(0).incarnation(), "w-0-2");
  membership_.Detach(**before, Fleet::Departure::kOrderly);
  EXPECT_EQ(members(), 1) << "what the old stream says is not the new process's";
}

TEST_F(MembershipTest, AMemberDrainedDuringABrokenStreamIsToldWhenItReturns) {
  v1::MemberReport report;
  *report.mutable_hello() = Hello("w-0");
  const auto attach = [&] {
    const auto stream = membership_.Attach(report, std::make_shared<StreamWaker>([] {}));
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *stream;
  };
  membership_.Detach(*attach(), Fleet::Departure::kBroken);
  ASSERT_TRUE(membership_.Drain("w-0").ok());

  const auto told = attach();
  EXPECT_TRUE(IsToldToLeave(*told));
  EXPECT_TRUE(membership_.ListMembers().members(0).leaving());
  membership_.Detach(*told, Fleet::Departure::kBroken);
  EXPECT_TRUE(IsToldToLeave(*attach())) << "it may not have heard it";
  report.set_leaving(true);
  EXPECT_FALSE(IsToldToLeave(*attach())) << "it says so itself";
}

TEST_F(MembershipTest, ANewProcessIsNotExcludedForItsPredecessorsFailure) {
  const uint64_t number = AddJob();
  v1::Hello hello = Hello("w-1");
  const auto first = Attach(hello);
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number);
    auto plan = std::make_shared<v1::JobPlan>();
    plan->set_generation(1);
    entry.job.Schedule(plan, now_);
    entry.job.BeginWarmUp(*plan, {"w-1"}, now_);
    v1::JobPlan warmed_up;
    ASSERT_TRUE(warmed_up.ParseFromString(*entry.job.warm_up().plan()));
    v1::JobReport report;
    report.set_state(v1::MEMBER_FAILED);
    report.set_rehearsal(warmed_up.rehearsal());
    entry.job.Report("w-1", &report, now_);
    transaction.Commit(entry, {.plan = std::move(plan)});
  }
  const auto refuses = [&] {
    JobRegistry::Transaction transaction(registry_.get());
    return transaction.FindNumber(number)->job.exclusions().Why("w-1") != nullptr;
  };
  EXPECT_TRUE(refuses());
  hello.set_ordinal(fleet_->members().at("w-1").ordinal);
  now_ += kLease * 1.1;
  membership_.ExpireLeases();
  const auto back = Attach(hello);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(refuses()) << "it was only cut off";
  membership_.Detach(**back, Fleet::Departure::kBroken);
  hello.set_ordinal(0);
  hello.set_incarnation("w-1-2");
  ASSERT_TRUE(Attach(hello).ok());
  EXPECT_FALSE(refuses());
}

TEST_F(MembershipTest, TellsAMemberToForgetAnUnknownJob) {
  const auto worker = Attach(Hello("w-0"));
  (*worker)->TakeDirectives();  // discards the welcome
  ASSERT_TRUE(membership_.Report(**worker, ReportOf("gone-7")).ok());

  const std::deque<MemberDirective> directives = (*worker)->TakeDirectives();

  ASSERT_EQ(directives.size(), 1);
  EXPECT_EQ(directives[0].directive.job(), "gone-7");
  EXPECT_TRUE(directives[0].directive.has_release());
}

}  // namespace
}  // namespace muster::membership_test
