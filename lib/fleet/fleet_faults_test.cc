// Connects a member and a coordinator through a TCP relay that flips bits. With TLS no changed
// message is accepted, and both sides continue. In plaintext a flip may change a message, because
// gRPC has no checksum of its own; the member may be useless until it is restarted. There the tests
// only require that no process crashes or hangs.
#include <array>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "gtest/gtest.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/fleet/channel.h"
#include "lib/fleet/fleet_client.h"
#include "lib/security/certificate.h"
#include "lib/security/identity.h"
#include "lib/transport/testing/faulty_relay.h"
#include "proto/muster/v1/member.grpc.pb.h"

namespace muster::fleet_faults_test {
namespace {

using Direction = RelayFault::Direction;

constexpr uint32_t kSeed = 20261125;
constexpr int kFlips = 40;
constexpr int kDirectives = 20;  // directives per session
constexpr absl::Duration kPatience = absl::Seconds(20);
// How long a plaintext session is awaited. It is short, because such a session may never recover.
constexpr absl::Duration kPlainPatience = absl::Seconds(2);

v1::Directive DirectiveOf(int64_t number) {
  v1::Directive directive;
  directive.set_term(1);
  directive.set_job("j-1");
  directive.set_generation(static_cast<uint32_t>(number) + 1);
  v1::JobPlan& plan = *directive.mutable_prepare()->mutable_plan();
  plan.set_first_step(number);
  plan.set_restore(std::string(200, static_cast<char>('a' + number)));
  return directive;
}

v1::JobReport ReportOf(int64_t directives_heard) {
  v1::JobReport report;
  report.set_job("j-1");
  report.set_next_step(directives_heard);
  report.mutable_error()->set_message(std::string(100, static_cast<char>('A' + directives_heard)));
  return report;
}

template <typename Message>
bool Same(const Message& a, const Message& b) {
  return a.SerializeAsString() == b.SerializeAsString();
}

// Behaves like every member: reports a change at once, and receives a directive again until its
// report shows it.
class CountingMember : public FleetMember {
 public:
  // Sets the client to report to; null for none.
  void ReportTo(FleetClient* client) {
    absl::MutexLock lock(&mu_);
    client_ = client;
  }
  std::vector<v1::JobReport> Report() override {
    absl::MutexLock lock(&mu_);
    return {ReportOf(heard_)};
  }
  void Handle(const v1::Directive& directive) override {
    absl::MutexLock lock(&mu_);
    const int64_t number = directive.prepare().plan().first_step();
    if (number < 0 || number > heard_ || !Same(directive, DirectiveOf(number))) {
      ++changed_;
    } else if (number == heard_) {
      ++heard_;
      if (client_ != nullptr) client_->ReportSoon();
    }
  }
  void CoordinatorLost() override {}

  // Number of directives that differ from those sent.
  int changed() const {
    absl::MutexLock lock(&mu_);
    return changed_;
  }

 private:
  mutable absl::Mutex mu_;
  FleetClient* client_ ABSL_GUARDED_BY(mu_) = nullptr;
  int64_t heard_ ABSL_GUARDED_BY(mu_) = 0;
  int changed_ ABSL_GUARDED_BY(mu_) = 0;
};

// Sends the directives one after another, each until a report shows it.
class CountingCoordinator : public v1::MemberService::Service {
 public:
  explicit CountingCoordinator(const std::shared_ptr<grpc::ServerCredentials>& credentials) {
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    builder.AddListeningPort("127.0.0.1:0", credentials, &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~CountingCoordinator() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Attach(grpc::ServerContext* /*context*/,
                      grpc::ServerReaderWriter<v1::Directive, v1::MemberReport>* stream) override {
    v1::Directive welcome;
    welcome.set_term(1);
    welcome.mutable_welcome()->set_cluster("c-1");
    welcome.mutable_welcome()->set_report_millis(5);
    stream->Write(welcome);
    v1::MemberReport report;
    while (stream->Read(&report)) {
      const int64_t heard = report.jobs_size() == 1 ? report.jobs(0).next_step() : -1;
      const bool as_sent =
          heard >= 0 && heard <= kDirectives && Same(report.jobs(0), ReportOf(heard));
      {
        absl::MutexLock lock(&mu_);
        changed_ += !as_sent;
        all_heard_ |= heard == kDirectives;
      }
      if (heard >= 0 && heard < kDirectives) stream->Write(DirectiveOf(heard));
    }
    return grpc::Status::OK;
  }

  bool AwaitAllHeard(absl::Duration patience) {
    absl::MutexLock lock(&mu_);
    return AwaitFor(&mu_, absl::Condition(&all_heard_), patience);
  }
  // Number of reports that differ from those sent.
  int changed() const {
    absl::MutexLock lock(&mu_);
    return changed_;
  }
  uint16_t port() const { return static_cast<uint16_t>(port_); }

 private:
  mutable absl::Mutex mu_;
  bool all_heard_ ABSL_GUARDED_BY(mu_) = false;
  int changed_ ABSL_GUARDED_BY(mu_) = 0;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

struct Security {
  std::shared_ptr<grpc::ServerCredentials> server = grpc::InsecureServerCredentials();
  std::shared_ptr<grpc::ChannelCredentials> client;  // null: plaintext
};

Security MakeTls() {
  const absl::Time now = absl::Now();
  const auto authority = MakeAuthority("test", now, absl::Hours(2));
  EXPECT_TRUE(authority.ok()) << authority.status();
  const auto server = IssueCertificate(
      *authority,
      {.identity = {Role::kCoordinator, ""}, .hosts = {"127.0.0.1"}, .lifetime = absl::Hours(1)},
      now);
  EXPECT_TRUE(server.ok()) << server.status();
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs.push_back({server->key, server->certificate});
  return {.server = grpc::SslServerCredentials(options),
          .client = grpc::SslCredentials({.pem_root_certs = authority->certificate})};
}

struct Outcome {
  bool all_heard = false;
  int changed = 0;  // changed messages, both directions
  std::array<int64_t, 2> bytes = {};
};

Outcome Run(const Security& security, const RelayFault& fault, absl::Duration patience) {
  CountingCoordinator coordinator(security.server);
  FaultyRelay relay(coordinator.port(), fault);
  CountingMember member;
  FleetClient::Options options{
      .coordinator = {absl::StrCat("127.0.0.1:", relay.port()), security.client}};
  options.hello.set_member("worker-0");
  const absl::Time begin = absl::Now();
  Outcome outcome;
  {
    FleetClient client(std::move(options), &member);
    member.ReportTo(&client);
    outcome.all_heard = coordinator.AwaitAllHeard(patience);
    member.ReportTo(nullptr);
  }
  EXPECT_LT(absl::Now() - begin, patience + kPatience) << "the member does not end";
  EXPECT_EQ(relay.happened(), fault.kind != RelayFault::Kind::kNone);
  outcome.changed = coordinator.changed() + member.changed();
  outcome.bytes = {relay.bytes(Direction::kThere), relay.bytes(Direction::kBack)};
  return outcome;
}

// Runs one session per flip and calls `judge` with its outcome.
template <typename Judge>
void FlipAtRandomPlaces(const Security& security, absl::Duration patience, const Judge& judge) {
  const Outcome undisturbed = Run(security, {}, kPatience);
  ASSERT_TRUE(undisturbed.all_heard);
  ASSERT_EQ(undisturbed.changed, 0);
  std::mt19937 random(kSeed);
  for (int i = 0; i < kFlips && !testing::Test::HasFailure(); ++i) {
    RelayFault fault{.kind = RelayFault::Kind::kFlip, .direction = Direction(random() % 2)};
    // The number of repeated directives depends on timing, so another session may have fewer bytes
    // than the undisturbed one.
    const int64_t bytes = undisturbed.bytes[static_cast<size_t>(fault.direction)] / 2;
    fault.place = static_cast<int64_t>(random() % bytes);
    fault.bit = static_cast<int>(random() % 8);
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, ", flip ", i, ": bit ", fault.bit, " of byte ",
                              fault.place,
                              fault.direction == Direction::kThere ? " there" : " back"));
    judge(Run(security, fault, patience));
  }
}

TEST(FleetFaultsTest, WithTlsABitFlipChangesNoMessageAndBothSidesContinue) {
  FlipAtRandomPlaces(MakeTls(), kPatience, [](const Outcome& outcome) {
    EXPECT_TRUE(outcome.all_heard);
    EXPECT_EQ(outcome.changed, 0);
  });
}

TEST(FleetFaultsTest, InPlaintextABitFlipHarmsNoProcess) {
  int changed = 0, all_heard = 0;
  FlipAtRandomPlaces({}, kPlainPatience, [&](const Outcome& outcome) {
    changed += outcome.changed > 0;
    all_heard += outcome.all_heard;
  });
  std::cout << kFlips << " flips in plaintext: " << changed << " changed a message, " << all_heard
            << " sessions received every directive\n";
}

}  // namespace
}  // namespace muster::fleet_faults_test
