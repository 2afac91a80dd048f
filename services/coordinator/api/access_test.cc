// Calls every method of the coordinator as every kind of caller, and checks which calls are
// allowed.
#include "services/coordinator/api/access.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/grpcpp.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/fleet/channel.h"
#include "lib/fleet/log_ring.h"
#include "lib/security/certificate.h"
#include "lib/security/tls_folder.h"
#include "lib/status/status.h"
#include "proto/muster/v1/access.grpc.pb.h"
#include "proto/muster/v1/coordinator.grpc.pb.h"
#include "services/coordinator/api/token_table.h"
#include "services/coordinator/common/caller.h"
#include "services/coordinator/store/sqlite_store.h"
#include "services/coordinator/testing/coordinator_process.h"
#include "services/coordinator/testing/raw_call.h"
#include "services/coordinator/testing/served_methods.h"

namespace muster::access_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kDay = absl::Hours(24);

int Renewals() {
  int renewals = 5;
  if (const char* wanted = std::getenv("RENEWALS")) {
    EXPECT_TRUE(absl::SimpleAtoi(wanted, &renewals)) << "RENEWALS=" << wanted;
  }
  return renewals;
}

// The permission that each method of a user service requires; no member may call them.
// MemberService is not listed, because all its methods have the same rule.
const std::map<std::string, std::string> kNeeds = {
    {"JobService.CreateJob", "submit"},
    {"JobService.GetJob", "read"},
    {"JobService.ListJobs", "read"},
    {"JobService.WatchJob", "read"},
    {"JobService.CancelJob", "submit"},
    {"JobService.DeleteJob", "submit"},
    {"JobService.SuspendJob", "submit"},
    {"JobService.ResumeJob", "submit"},
    {"JobService.UpdateJob", "submit"},
    {"JobService.WatchJobs", "read"},
    {"JobService.ListEvents", "read"},
    {"JobService.ReadJobMetrics", "read"},
    {"JobService.ReadJobTiming", "read"},
    {"JobService.ReadJobLinks", "read"},
    {"JobService.TraceJob", "read"},
    {"JobService.GetServerInfo", "read"},
    {"JobService.UploadModel", "submit"},
    {"FleetService.ListMembers", "read"},
    {"FleetService.DrainMember", "admin"},
    {"FleetService.ReadMemberLog", "read"},
    {"CheckpointService.ListCheckpoints", "read"},
    {"CheckpointService.GetCheckpoint", "read"},
    {"CheckpointService.SaveCheckpoint", "submit"},
    {"CheckpointService.DeleteCheckpoint", "submit"},
    {"CheckpointService.ReadCheckpoint", "read"},
    {"AccessService.CreateToken", "admin"},
    {"AccessService.ListTokens", "admin"},
    {"AccessService.RevokeToken", "admin"},
    {"AdminService.Backup", "admin"},
    {"ServerReflection.ServerReflectionInfo", "read"},
};

constexpr size_t kMemberMethods = 4;

bool IsForMembers(const google::protobuf::MethodDescriptor& method) {
  return method.service()->name() == "MemberService";
}

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path + ".new") << content;
  ASSERT_EQ(rename((path + ".new").c_str(), path.c_str()), 0);
}

class AccessTest : public ::testing::Test {
 protected:
  AccessTest() {
    EXPECT_NE(mkdtemp(home_.data()), nullptr);
    const std::string server = Folder("server", authority_, Identity{Role::kCoordinator, ""});
    coordinator_ = std::make_unique<CoordinatorProcess>(
        std::vector<std::string>{absl::StrCat("--tls=", server)});
    server_ = {server};
  }
  static CertifiedKey Issue(const CertifiedKey& authority, const Identity& identity) {
    CertificateOrder order{.identity = identity, .lifetime = kDay};
    if (identity.role == Role::kCoordinator) order.hosts = {"127.0.0.1"};
    return *IssueCertificate(authority, order, absl::Now());
  }
  // Makes a folder for --tls with this certificate, or without one.
  std::string Folder(const std::string& name, const CertifiedKey& authority,
                     const std::optional<Identity>& identity) {
    const TlsFolder folder{absl::StrCat(home_, "/", name)};
    EXPECT_EQ(mkdir(folder.path.c_str(), 0700), 0);
    WriteFile(folder.authority(), authority_.certificate);  // the authority that it trusts
    if (identity) Install(folder, Issue(authority, *identity));
    return folder.path;
  }
  static void Install(const TlsFolder& folder, const CertifiedKey& mine) {
    WriteFile(folder.key(), mine.key);
    WriteFile(folder.certificate(), mine.certificate);
  }
  std::shared_ptr<grpc::Channel> Dial(const ClientSecurity& security) {
    const auto target = SecureTarget(coordinator_->address(), security);
    EXPECT_TRUE(target.ok()) << target.status();
    return DialCoordinator(*target);
  }
  ClientSecurity As(const std::string& name, const std::optional<Identity>& identity) {
    return {.tls = Folder(name, authority_, identity), .token_file = ""};
  }
  ClientSecurity WithToken(const std::string& name, const std::string& secret) {
    const std::string file = absl::StrCat(home_, "/", name, ".token");
    WriteFile(file, secret + "\n");
    return {.tls = Folder(name, authority_, std::nullopt), .token_file = file};
  }
  v1::CreateTokenResponse MakeToken(v1::AccessService::Stub& admin, v1::TokenScope scope) {
    v1::CreateTokenRequest request;
    request.set_holder("ann");
    request.set_scope(scope);
    request.set_lifetime_seconds(3600);
    grpc::ClientContext context;
    v1::CreateTokenResponse response;
    const grpc::Status made = admin.CreateToken(&context, request, &response);
    EXPECT_TRUE(made.ok()) << made.error_message();
    secrets_.push_back(response.secret());
    return response;
  }

  // Calls a method with one message. Returns its final status.
  static absl::Status Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                           const std::string& request) {
    grpc::GenericStub stub(channel);
    return CallRaw(stub, method, request);
  }
  static absl::Status Call(const std::shared_ptr<grpc::Channel>& channel,
                           const google::protobuf::MethodDescriptor& method, v1::Role role) {
    v1::MemberReport report;
    report.mutable_hello()->set_role(role);
    std::string request;
    if (method.name() == "Attach") request = report.SerializeAsString();
    if (method.name() == "WatchJobs") {  // invalid, because a valid one would never end
      v1::WatchJobsRequest refused;
      refused.set_selector("?");
      request = refused.SerializeAsString();
    }
    return Call(channel, PathOf(method), request);
  }

  std::string home_ = ::testing::TempDir() + "/access-XXXXXX";
  const CertifiedKey authority_ = *MakeAuthority("test", absl::Now(), 30 * kDay);
  TlsFolder server_;
  std::unique_ptr<CoordinatorProcess> coordinator_;
  std::vector<std::string> secrets_;  // of the created tokens
};

TEST_F(AccessTest, EveryMethodChecksEveryCaller) {
  const auto admin =
      v1::AccessService::NewStub(Dial(As("first-admin", Identity{Role::kAdmin, "root"})));
  const std::string revoked = [&] {
    const auto token = MakeToken(*admin, v1::TOKEN_ADMIN);
    grpc::ClientContext context;
    v1::RevokeTokenRequest request;
    request.set_id(token.token().id());
    v1::AccessToken response;
    EXPECT_TRUE(admin->RevokeToken(&context, request, &response).ok());
    return token.secret();
  }();
  struct Somebody {
    std::string name;
    ClientSecurity security;
    std::set<std::string> may;
    v1::Role role = v1::WORKER;  // the role in Hello
  };
  ClientSecurity worker_with_token = As("w-token", Identity{Role::kWorker, ""});
  worker_with_token.token_file =
      WithToken("w", MakeToken(*admin, v1::TOKEN_ADMIN).secret()).token_file;
  const std::vector<Somebody> everybody = {
      {"nobody", As("nobody", std::nullopt), {}},
      {"worker", As("worker", Identity{Role::kWorker, ""}), {"member"}},
      {"ps", As("ps", Identity{Role::kPs, ""}), {"member"}, v1::PS},
      {"submitter", As("submitter", Identity{Role::kSubmitter, "bob"}), {"read", "submit"}},
      {"admin", As("admin", Identity{Role::kAdmin, "ann"}), {"read", "submit", "admin"}},
      {"read token", WithToken("r", MakeToken(*admin, v1::TOKEN_READ).secret()), {"read"}},
      {"submit token",
       WithToken("s", MakeToken(*admin, v1::TOKEN_SUBMIT).secret()),
       {"read", "submit"}},
      {"admin token",
       WithToken("a", MakeToken(*admin, v1::TOKEN_ADMIN).secret()),
       {"read", "submit", "admin"}},
      {"revoked token", WithToken("v", revoked), {}},
      {"made-up token", WithToken("m", "muster.t-00000000.AAAA"), {}},
      // The token decides, whatever certificate the connection has.
      {"worker with an admin token", worker_with_token, {"read", "submit", "admin"}},
  };
  std::string answers;
  int methods = 0;
  for (const Somebody& somebody : everybody) {
    const auto channel = Dial(somebody.security);
    for (const auto* method : ServedMethods()) {
      ++methods;
      const std::string name = absl::StrCat(method->service()->name(), ".", method->name());
      ASSERT_NE(kNeeds.contains(name), IsForMembers(*method)) << name << ": who may call it?";
      const std::string needed = IsForMembers(*method) ? "member" : kNeeds.at(name);
      const absl::Status status = Call(channel, *method, somebody.role);
      EXPECT_FALSE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status))
          << somebody.name << ", " << name << ": " << status;
      absl::StrAppend(&answers, status.message(), "\n");
      if (somebody.may.contains(needed)) {
        EXPECT_FALSE(absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
                     absl::IsUnimplemented(status))
            << somebody.name << ", " << name << ": " << status;
      } else {
        EXPECT_EQ(status.code(), somebody.may.empty() ? absl::StatusCode::kUnauthenticated
                                                      : absl::StatusCode::kPermissionDenied)
            << somebody.name << ", " << name << ": " << status;
      }
    }
  }
  EXPECT_EQ(methods, static_cast<int>(everybody.size() * (kNeeds.size() + kMemberMethods)));

  const std::string& log = coordinator_->End();
  EXPECT_THAT(log, HasSubstr("audit: CreateToken"));
  ASSERT_EQ(secrets_.size(), 5);
  for (const std::string& secret : secrets_) {
    EXPECT_THAT(log, Not(HasSubstr(secret)));
    EXPECT_THAT(answers, Not(HasSubstr(secret)));
  }
}

TEST_F(AccessTest, RefusesClientsWithoutACertificateOfTheAuthority) {
  const std::string list = "/muster.v1.JobService/ListJobs";
  const CertifiedKey other = *MakeAuthority("test", absl::Now(), 30 * kDay);
  const ClientSecurity strange{.tls = Folder("strange", other, Identity{Role::kAdmin, "eve"}),
                               .token_file = ""};
  EXPECT_TRUE(absl::IsUnavailable(Call(Dial(strange), list, "")));
  // The certificate expires while the client has it in memory. A client would not present an
  // expired file.
  const TlsFolder ending{Folder("ending", authority_, std::nullopt)};
  const CertificateOrder order{.identity = {Role::kAdmin, "ann"}, .lifetime = absl::Seconds(2)};
  Install(ending, *IssueCertificate(authority_, order, absl::Now()));
  const auto target = SecureTarget(coordinator_->address(), {.tls = ending.path, .token_file = ""});
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_TRUE(Call(DialCoordinator(*target), list, "").ok());
  const absl::Time patience = absl::Now() + absl::Seconds(30);
  while (!absl::IsUnavailable(Call(DialCoordinator(*target), list, ""))) {
    ASSERT_LT(absl::Now(), patience) << "a certificate of two seconds still holds";
  }
  // A server certificate is not valid for clients.
  EXPECT_TRUE(absl::IsUnavailable(
      Call(Dial(As("server-as-client", Identity{Role::kCoordinator, ""})), list, "")));
  // Plaintext is refused.
  EXPECT_TRUE(absl::IsUnavailable(Call(DialCoordinator(coordinator_->address()), list, "")));
  // A client that trusts another authority refuses this coordinator.
  const TlsFolder believer{Folder("believer", other, Identity{Role::kAdmin, "ann"})};
  WriteFile(believer.authority(), other.certificate);
  const absl::Status refused = Call(Dial({.tls = believer.path, .token_file = ""}), list, "");
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("certificate verify failed"));
}

TEST_F(AccessTest, AMemberCanOnlySpeakAsItself) {
  auto attach = [&](const ClientSecurity& security, const std::string& member, v1::Role role) {
    v1::MemberReport report;
    report.mutable_hello()->set_member(member);
    report.mutable_hello()->set_role(role);
    report.mutable_hello()->set_incarnation("1");
    if (role == v1::PS) report.mutable_hello()->add_addresses("a");
    return ReasonOf(
        Call(Dial(security), "/muster.v1.MemberService/Attach", report.SerializeAsString()));
  };
  const ClientSecurity third = As("w3", Identity{Role::kWorker, "worker-3"});
  const ClientSecurity any = As("any", Identity{Role::kWorker, ""});
  EXPECT_EQ(attach(third, "worker-3", v1::WORKER), "") << "and left in order";
  EXPECT_EQ(attach(third, "worker-4", v1::WORKER), "NOT_YOUR_NAME");
  EXPECT_EQ(attach(third, "worker-3", v1::PS), "NOT_YOUR_NAME");
  EXPECT_EQ(attach(any, "worker-4", v1::WORKER), "");
  EXPECT_EQ(attach(any, "ps-1", v1::PS), "NOT_YOUR_NAME");
}

// The coordinator ignores stamps that a client writes into its own header fields.
TEST_F(AccessTest, IgnoresStampsFromClients) {
  const auto jobs = v1::JobService::NewStub(Dial(As("nobody", std::nullopt)));
  for (const char* field : {"x-muster-caller", "x-muster-caller-", "x-forwarded-client-cert"}) {
    grpc::ClientContext context;
    context.AddMetadata(field, "admin/ann 10.0.0.1:1");
    v1::ListJobsResponse response;
    EXPECT_EQ(jobs->ListJobs(&context, v1::ListJobsRequest(), &response).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
  }
}

// Members of version 0.2.0 call methods that this coordinator does not have.
TEST_F(AccessTest, AnUnknownMethodGetsOnlyAnExplanation) {
  for (const ClientSecurity& security :
       {As("nobody", std::nullopt), As("worker", Identity{Role::kWorker, ""})}) {
    const absl::Status status = Call(Dial(security), "/muster.v1.FleetService/Attach", "");
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("should be of one version"));
  }
}

// Callers need not authenticate, but their addresses are logged.
TEST(OpenAccessTest, TheAuditLogHasTheAddressesOfCallers) {
  CoordinatorProcess coordinator;
  v1::CancelJobRequest request;
  request.set_name("none-7");
  grpc::GenericStub stub(DialCoordinator(coordinator.address()));
  const absl::Status status =
      CallRaw(stub, "/muster.v1.JobService/CancelJob", request.SerializeAsString());
  EXPECT_EQ(ReasonOf(status), "JOB_NOT_FOUND");
  EXPECT_THAT(coordinator.End(),
              ContainsRegex("audit: CancelJob none-7 by anonymous from 127.0.0.1:[0-9]+: JOB_NOT"));
}

// A program without supervision may ask for a deleted job again and again.
TEST(AuditTest, LimitsTheFailuresOfOneCallerButNotSuccessesOrOtherCallers) {
  const Access access = Access::Open();
  const LogRing log(1 << 20);
  const Caller bob{.address = "10.0.0.1:40812", .token = "t-1 (bob)"};
  const Caller bob_elsewhere{.address = "10.0.0.2:7", .token = "t-1 (bob)"};
  const Caller ann{.address = "10.0.0.1:40812", .token = "t-2 (ann)"};
  const absl::Status fault = WithReason(absl::NotFoundError("no"), "JOB_NOT_FOUND");
  const auto count = [&](absl::string_view part) {
    int lines = 0;
    const std::string text = log.Read(0, 1 << 20).text;
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      lines += absl::StrContains(line, part);
    }
    return lines;
  };
  const absl::Duration begin = SteadyNow();
  for (int i = 0; i < 500; ++i) {
    access.Audit(i % 2 == 0 ? bob : bob_elsewhere, "CancelJob", "none-7", fault);
    access.Audit(bob, "CancelJob", "net-7", absl::OkStatus());
  }
  access.Audit(ann, "CancelJob", "none-7", fault);

  const double seconds = absl::ToDoubleSeconds(SteadyNow() - begin);
  EXPECT_GE(count("t-1 (bob) from 10.0.0.1:40812: JOB_NOT_FOUND"), 1);
  EXPECT_LE(count("JOB_NOT_FOUND"),
            1 + Access::kWrittenAtOnce + Access::kWrittenPerSecond * seconds + 1);
  EXPECT_EQ(count("net-7 by token t-1 (bob) from 10.0.0.1:40812: OK"), 500);
  EXPECT_EQ(count("none-7 by token t-2 (ann)"), 1);
  while (count("failures of this caller before it were left out") == 0) {
    access.Audit(bob, "CancelJob", "none-7", fault);
  }
}

TEST(AuditTest, LimitsRefusalsAndCountsTheOmittedOnes) {
  std::string folder = ::testing::TempDir() + "/flood-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto store = SqliteStore::Open(folder + "/coordinator.db");
  ASSERT_TRUE(store.ok()) << store.status();
  const auto tokens = TokenTable::Open(store->get());
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  const CallerStamp stamp;
  const Access access = Access::Checked(&stamp, tokens->get());
  const grpc::ServerContext context;
  LogRing log(1 << 20);
  const absl::Duration begin = SteadyNow();
  int64_t refusals = 0;
  const auto refuse = [&] {
    ++refusals;
    const auto caller = access.Check(context, "CancelJob", Permission::kSubmit);
    EXPECT_TRUE(absl::IsUnauthenticated(caller.status())) << caller.status();
    return log.Read(0, 1 << 20).text;
  };

  std::string text;
  size_t before;
  do {  // until a line is written after omitted ones
    before = text.size();
    text = refuse();
  } while (refusals < 1000 || text.size() == before || !absl::StrContains(text, "left out"));

  int64_t written = 0, left_out = 0;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    EXPECT_THAT(line, HasSubstr("audit: CancelJob by anonymous: NO_CREDENTIALS"));
    ++written;
    const size_t more = line.find("; ");
    if (more != std::string::npos) left_out += std::atoll(line.c_str() + more + 2);
  }
  EXPECT_EQ(written + left_out, refusals);
  const double seconds = absl::ToDoubleSeconds(SteadyNow() - begin);
  EXPECT_LE(written, Access::kWrittenAtOnce + Access::kWrittenPerSecond * seconds);

  access.AuditRefusal({.address = "10.0.0.1:40812"}, "CancelJob",
                      WithReason(absl::UnauthenticatedError("no such token"), "TOKEN_INVALID"));
  EXPECT_THAT(log.Read(0, 1 << 20).text, HasSubstr("10.0.0.1:40812: TOKEN_INVALID"));
}

TEST_F(AccessTest, RenewedCertificatesInterruptNoCall) {
  const std::string list = "/muster.v1.JobService/ListJobs";
  const ClientSecurity admin = As("admin", Identity{Role::kAdmin, "ann"});
  const auto lasting = Dial(admin);
  int calls = 0;
  for (int renewal = 0; renewal < Renewals(); ++renewal) {
    Install(server_, Issue(authority_, Identity{Role::kCoordinator, ""}));
    Install({admin.tls}, Issue(authority_, Identity{Role::kAdmin, "ann"}));
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1100);
    do {
      EXPECT_TRUE(Call(lasting, list, "").ok());
      const absl::Status status = Call(Dial(admin), list, "");
      EXPECT_TRUE(status.ok()) << status;
      calls += 2;
    } while (std::chrono::steady_clock::now() < until);
  }
  std::printf("%d calls during %d renewals\n", calls, Renewals());
}

}  // namespace
}  // namespace muster::access_test
