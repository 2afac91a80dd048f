#include "lib/fleet/fleet_client.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "gtest/gtest.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/fleet/channel.h"
#include "lib/fleet/log_ring.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"
#include "proto/muster/v1/coordinator.grpc.pb.h"
#include "proto/muster/v1/member.grpc.pb.h"

namespace muster::fleet_client_test {
namespace {

using ::testing::ContainsRegex;

constexpr absl::Duration kPatience = absl::Seconds(20);

// Welcomes every member, keeps its reports, and sends the directives given to Send().
class FakeCoordinator : public v1::MemberService::Service {
 public:
  explicit FakeCoordinator(uint64_t term, int port = 0, std::string cluster = "c-1")
      : term_(term), cluster_(std::move(cluster)), port_(port) {
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  ~FakeCoordinator() override {
    {
      absl::MutexLock lock(&mu_);
      closing_ = true;
    }
    server_->Shutdown(std::chrono::system_clock::now());
  }

  grpc::Status Attach(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<v1::Directive, v1::MemberReport>* stream) override {
    absl::Status refuse;
    v1::Directive welcome;
    {
      absl::MutexLock lock(&mu_);
      refuse = refuse_;
    }
    if (!refuse.ok()) return ToGrpc(refuse);
    welcome.set_term(term_);
    welcome.mutable_welcome()->set_cluster(cluster_);
    welcome.mutable_welcome()->set_report_millis(20);
    welcome.mutable_welcome()->set_ordinal(5);
    stream->Write(welcome);
    v1::MemberReport report;
    while (stream->Read(&report)) {
      absl::MutexLock lock(&mu_);
      reports_.push_back(report);
      for (; !outbox_.empty(); outbox_.pop_front()) stream->Write(outbox_.front());
    }
    absl::MutexLock lock(&mu_);
    closed_in_order_ = !context->IsCancelled();
    return grpc::Status::OK;
  }

  // Refuses all streams from the next one on.
  void Refuse(absl::Status status) {
    absl::MutexLock lock(&mu_);
    refuse_ = std::move(status);
  }

  void Send(uint64_t term, const std::string& job) {
    absl::MutexLock lock(&mu_);
    v1::Directive directive;
    directive.set_term(term);
    directive.set_job(job);
    directive.mutable_release();
    outbox_.push_back(directive);
  }

  bool AwaitReports(size_t count) {
    absl::MutexLock lock(&mu_);
    auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return reports_.size() >= count; };
    return AwaitFor(&mu_, absl::Condition(&enough), kPatience);
  }

  v1::MemberReport report(size_t index) {
    absl::MutexLock lock(&mu_);
    return reports_[index];
  }

  bool AwaitClosedInOrder() {
    absl::MutexLock lock(&mu_);
    return AwaitFor(&mu_, absl::Condition(&closed_in_order_), kPatience);
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  int port() const { return port_; }

 private:
  const uint64_t term_;
  const std::string cluster_;
  int port_;
  absl::Mutex mu_;
  std::deque<v1::MemberReport> reports_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::Directive> outbox_ ABSL_GUARDED_BY(mu_);
  absl::Status refuse_ ABSL_GUARDED_BY(mu_);
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_in_order_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<grpc::Server> server_;
};

// Implements FleetService but not MemberService, as a coordinator of another version might.
class OlderCoordinator {
 public:
  OlderCoordinator() {
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&people_);
    server_ = builder.BuildAndStart();
  }
  ~OlderCoordinator() { server_->Shutdown(std::chrono::system_clock::now()); }

  int port() const { return port_; }

 private:
  int port_ = 0;
  v1::FleetService::Service people_;
  std::unique_ptr<grpc::Server> server_;
};

class RecordingMember : public FleetMember {
 public:
  std::vector<v1::JobReport> Report() override {
    v1::JobReport report;
    report.set_job("j");
    return {report};
  }
  void Handle(const v1::Directive& directive) override {
    absl::MutexLock lock(&mu_);
    handled_.push_back(directive.job());
  }
  void CoordinatorLost() override {
    absl::MutexLock lock(&mu_);
    lost_ = true;
  }

  bool AwaitHandled(const std::vector<std::string>& jobs) {
    absl::MutexLock lock(&mu_);
    auto equal = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return handled_ == jobs; };
    return AwaitFor(&mu_, absl::Condition(&equal), kPatience);
  }
  bool AwaitLost() {
    absl::MutexLock lock(&mu_);
    return AwaitFor(&mu_, absl::Condition(&lost_), kPatience);
  }

 private:
  absl::Mutex mu_;
  std::vector<std::string> handled_ ABSL_GUARDED_BY(mu_);
  bool lost_ ABSL_GUARDED_BY(mu_) = false;
};

FleetClient::Options OptionsFor(const FakeCoordinator& coordinator) {
  FleetClient::Options options{.coordinator = coordinator.address()};
  options.hello.set_member("worker-0");
  return options;
}

TEST(FleetClientTest, FirstReportSaysHelloAndLaterOnesCarryTheJobs) {
  FakeCoordinator coordinator(1);
  RecordingMember member;
  FleetClient client(OptionsFor(coordinator), &member);

  ASSERT_TRUE(coordinator.AwaitReports(3));

  EXPECT_EQ(coordinator.report(0).hello().member(), "worker-0");
  EXPECT_FALSE(coordinator.report(1).has_hello());
  EXPECT_EQ(coordinator.report(1).jobs(0).job(), "j");
}

TEST(FleetClientTest, AttachesAgainToARestartedCoordinatorAndIgnoresTheOldTerm) {
  RecordingMember member;
  auto first = std::make_unique<FakeCoordinator>(7);
  const int port = first->port();
  FleetClient client(OptionsFor(*first), &member);
  first->Send(7, "a");
  ASSERT_TRUE(member.AwaitHandled({"a"}));
  first.reset();

  FakeCoordinator second(8, port);
  ASSERT_TRUE(second.AwaitReports(1));
  EXPECT_EQ(second.report(0).hello().member(), "worker-0");
  second.Send(7, "stale");
  second.Send(8, "b");

  EXPECT_TRUE(member.AwaitHandled({"a", "b"}));
}

// No coordinator listens at the first address; the second one stands by until the third has ended.
TEST(FleetClientTest, AttachesToTheCoordinatorThatLeads) {
  FakeCoordinator next(8);
  next.Refuse(WithReason(absl::UnavailableError("the third leads"), "NOT_LEADER"));
  auto leader = std::make_unique<FakeCoordinator>(7);
  RecordingMember member;
  FleetClient::Options options{
      .coordinator = absl::StrCat("127.0.0.1:1,", next.address(), ",", leader->address())};
  FleetClient client(options, &member);
  leader->Send(7, "a");
  ASSERT_TRUE(member.AwaitHandled({"a"}));

  next.Refuse(absl::OkStatus());
  leader.reset();

  next.Send(8, "b");
  EXPECT_TRUE(member.AwaitHandled({"a", "b"}));
}

TEST(CoordinatorTargetTest, CopiesShareTheAddressToTry) {
  const CoordinatorTarget target("a:1,b:2");
  const CoordinatorTarget copy = target;  // NOLINT: the copy is what is tested
  EXPECT_EQ(copy.address(), "a:1");

  target.PassOver("a:1");
  EXPECT_EQ(copy.address(), "b:2");
  copy.PassOver("a:1");
  EXPECT_EQ(target.address(), "b:2") << "it was already passed over";
  copy.PassOver("b:2");
  EXPECT_EQ(target.address(), "a:1");
  const CoordinatorTarget only("a:1");
  only.PassOver("a:1");
  EXPECT_EQ(only.address(), "a:1");
}

TEST(FleetClientTest, MemberDropsItsJobsIfTheCoordinatorStaysAway) {
  RecordingMember member;
  FleetClient::Options options{.coordinator = "127.0.0.1:1"};
  options.coordinator_grace = absl::Milliseconds(50);
  FleetClient client(options, &member);

  EXPECT_TRUE(member.AwaitLost());
  EXPECT_FALSE(client.attached());
}

TEST(FleetClientTest, HelloRepeatsTheValuesOfTheLastWelcome) {
  RecordingMember member;
  auto first = std::make_unique<FakeCoordinator>(7);
  const int port = first->port();
  FleetClient client(OptionsFor(*first), &member);
  ASSERT_TRUE(first->AwaitReports(2));
  EXPECT_EQ(first->report(0).hello().ordinal(), 0);
  EXPECT_EQ(first->report(0).hello().cluster(), "");
  first.reset();

  FakeCoordinator second(8, port);
  ASSERT_TRUE(second.AwaitReports(1));

  EXPECT_EQ(second.report(0).hello().ordinal(), 5);
  EXPECT_EQ(second.report(0).hello().cluster(), "c-1");
  EXPECT_EQ(second.report(0).hello().term(), 7);
}

TEST(FleetClientTest, APermanentRefusalEndsTheAttemptsAndTheJobs) {
  for (const char* reason : {"REPLACED", "CLUSTER_CHANGED", "HELLO_INVALID"}) {
    FakeCoordinator coordinator(1);
    coordinator.Refuse(WithReason(absl::FailedPreconditionError("no"), reason));
    RecordingMember member;
    absl::Notification refused;
    FleetClient::Options options = OptionsFor(coordinator);
    options.refused = [&] { refused.Notify(); };
    FleetClient client(std::move(options), &member);

    refused.WaitForNotification();

    EXPECT_EQ(ReasonOf(client.refusal()), reason);
    EXPECT_TRUE(member.AwaitLost()) << reason;
  }
}

TEST(FleetClientTest, RetriesWhileTheNameIsInUse) {
  FakeCoordinator coordinator(1);
  coordinator.Refuse(WithReason(absl::UnavailableError("another pid"), "NAME_IN_USE"));
  RecordingMember member;
  FleetClient::Options options = OptionsFor(coordinator);
  options.coordinator_grace = absl::Milliseconds(1);
  FleetClient client(std::move(options), &member);
  ASSERT_TRUE(member.AwaitLost()) << "refused for longer than its grace";
  EXPECT_TRUE(client.refusal().ok());

  coordinator.Refuse(absl::OkStatus());

  EXPECT_TRUE(coordinator.AwaitReports(1));
}

// During an update of all programs the member may be updated before the coordinator.
TEST(FleetClientTest, NamesTheVersionAndRetriesIfTheCoordinatorLacksTheMethod) {
  LogRing log(1 << 20);
  auto older = std::make_unique<OlderCoordinator>();
  const int port = older->port();
  RecordingMember member;
  FleetClient::Options options{.coordinator = absl::StrCat("127.0.0.1:", port)};
  options.hello.set_member("worker-0");
  options.hello.set_version("9.8.7");
  options.coordinator_grace = absl::ZeroDuration();
  FleetClient client(std::move(options), &member);
  ASSERT_TRUE(member.AwaitLost());
  EXPECT_TRUE(client.refusal().ok());
  const std::string text = log.Read(0, 1 << 20).text;
  EXPECT_THAT(text, ContainsRegex("cannot attach to the coordinator at 127.0.0.1:[0-9]+: .*another "
                                  "version than this program's 9.8.7"));
  EXPECT_THAT(text, ContainsRegex("not attached to .*should be of one version.*dropping all jobs"));
  older.reset();

  FakeCoordinator updated(1, port);

  EXPECT_TRUE(updated.AwaitReports(1));
}

TEST(FleetClientTest, RefusesACoordinatorOfAnotherCluster) {
  RecordingMember member;
  auto first = std::make_unique<FakeCoordinator>(7);
  const int port = first->port();
  absl::Notification refused;
  FleetClient::Options options = OptionsFor(*first);
  options.refused = [&] { refused.Notify(); };
  FleetClient client(std::move(options), &member);
  ASSERT_TRUE(first->AwaitReports(2));
  first.reset();

  FakeCoordinator second(9, port, "c-2");

  refused.WaitForNotification();
  EXPECT_EQ(ReasonOf(client.refusal()), "CLUSTER_CHANGED");
}

TEST(FleetClientTest, DetachClosesTheStreamInOrder) {
  FakeCoordinator coordinator(1);
  RecordingMember member;
  FleetClient client(OptionsFor(coordinator), &member);
  ASSERT_TRUE(coordinator.AwaitReports(1));

  client.Detach(kPatience);

  EXPECT_TRUE(coordinator.AwaitClosedInOrder());
}

}  // namespace
}  // namespace muster::fleet_client_test
