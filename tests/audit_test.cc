// The audit log of a cluster that requires authentication. Each call that could change something
// leaves one line, for every caller and every result.
#include <google/protobuf/message.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "lib/fleet/channel.h"
#include "lib/job/job_file.h"
#include "lib/security/identity.h"
#include "lib/status/status.h"
#include "proto/muster/v1/access.grpc.pb.h"
#include "proto/muster/v1/admin.pb.h"
#include "proto/muster/v1/checkpoint.grpc.pb.h"
#include "proto/muster/v1/coordinator.grpc.pb.h"
#include "services/coordinator/testing/raw_call.h"
#include "services/coordinator/testing/served_methods.h"
#include "tests/certificates.h"
#include "tests/training_cluster.h"

namespace muster::audit_test {
namespace {

using ::testing::UnorderedElementsAreArray;

// Methods that leave no audit line: those that change nothing, and those of members. Every other
// method counts as a change: name a new API method here, or call it below.
const std::set<std::string> kNoChange = {
    "GetJob",         "ListJobs",         "WatchJob",
    "WatchJobs",      "ListEvents",       "ReadJobMetrics",
    "ReadJobTiming",  "ReadJobLinks",     "TraceJob",
    "GetServerInfo",  "ListMembers",      "ReadMemberLog",
    "ListTokens",     "GetCheckpoint",    "ListCheckpoints",
    "ReadCheckpoint", "Attach",           "WriteShard",
    "ReadShard",      "WriteShardDirect", "ServerReflectionInfo"};

// Returns the methods that count as changes, by name.
std::map<std::string, const google::protobuf::MethodDescriptor*> Changes() {
  std::map<std::string, const google::protobuf::MethodDescriptor*> changes;
  for (const auto* method : ServedMethods()) {
    if (!kNoChange.contains(method->name())) changes[method->name()] = method;
  }
  return changes;
}

constexpr absl::string_view kJob = R"(
name: audited
model: {zoo: {name: linear}}
data: {linear: {slope: 3, intercept: -1, samples: 64}, batch_size: 8}
training: {steps: 1000000000, optimizer: {sgd: {learning_rate: 0.01}}}
resources: {workers: {min: 1, max: 1}, ps: 1}
)";

// Returns a serialized request of the method that sets only its first field, to `object`.
std::string AskedOf(const std::string& method, const std::string& object) {
  const std::unique_ptr<google::protobuf::Message> request(
      google::protobuf::MessageFactory::generated_factory()
          ->GetPrototype(Changes().at(method)->input_type())
          ->New());
  const auto* const field = request->GetDescriptor()->field(0);
  request->GetReflection()->SetString(request.get(), field, object);
  return request->SerializeAsString();
}

class AuditTest : public ::testing::Test {
 protected:
  struct Somebody {
    std::string name;  // as in the log
    std::shared_ptr<grpc::Channel> channel;
  };

  Somebody As(std::string name, const ClientSecurity& security) {
    const auto target = SecureTarget(cluster_.members().address(), security);
    EXPECT_TRUE(target.ok()) << target.status();
    return {std::move(name), DialCoordinator(*target)};
  }
  // Returns a caller with a token that Ann creates.
  Somebody WithToken(const std::string& holder, v1::TokenScope scope) {
    v1::CreateTokenRequest request;
    request.set_holder(holder);
    request.set_scope(scope);
    request.set_lifetime_seconds(3600);
    grpc::ClientContext context;
    v1::CreateTokenResponse made;
    const grpc::Status status =
        v1::AccessService::NewStub(ann_.channel)->CreateToken(&context, request, &made);
    EXPECT_TRUE(status.ok()) << status.error_message();
    const std::string id = made.token().id();
    ExpectLine(ann_, "CreateToken", absl::StrCat(id, " ", holder), "OK");
    const std::string file = absl::StrCat(::testing::TempDir(), "/", holder, ".token");
    std::ofstream(file) << made.secret();
    ids_[holder] = id;
    return As(absl::StrCat("token ", id, " (", holder, ")"),
              {.tls = certificates_.FolderOfNobody(), .token_file = file});
  }

  static absl::Status Call(const Somebody& who, const std::string& method,
                           const std::string& request) {
    grpc::GenericStub stub(who.channel);
    return CallRaw(stub, PathOf(*Changes().at(method)), request);
  }
  // Makes a call that succeeds.
  void Change(const Somebody& who, const std::string& method, const std::string& object) {
    Change(who, method, object, AskedOf(method, object));
  }
  void Change(const Somebody& who, const std::string& method, const std::string& object,
              const std::string& request) {
    const absl::Status status = Call(who, method, request);
    EXPECT_TRUE(status.ok()) << method << ": " << status;
    ExpectLine(who, method, object, "OK");
    made_.insert(method);
  }
  // Makes a call that is refused. The line has no object if the server did not read the request.
  void Refused(const Somebody& who, const std::string& method, const std::string& object,
               const std::string& request, const std::string& reason) {
    EXPECT_EQ(ReasonOf(Call(who, method, request)), reason) << method << " by " << who.name;
    ExpectLine(who, method, object, reason);
  }
  void ExpectLine(const Somebody& who, const std::string& method, const std::string& object,
                  const std::string& result) {
    expected_.push_back(absl::StrCat("audit: ", method, object.empty() ? "" : " ", object, " by ",
                                     who.name, " from 127.0.0.1:PORT: ", result));
  }
  // Returns the audit lines of the coordinator's log, without time and source line, and with PORT
  // in place of the caller's port.
  std::vector<std::string> Lines() {
    std::vector<std::string> lines;
    std::ifstream log(cluster_.members().log_path("coordinator"));
    for (std::string line; std::getline(log, line);) {
      const size_t begin = line.find("audit: ");
      if (begin == std::string::npos) continue;
      const std::string from = " from 127.0.0.1:";
      const size_t port = line.find(from, begin) + from.size();
      const auto end = std::find_if_not(line.begin() + static_cast<std::ptrdiff_t>(port),
                                        line.end(), absl::ascii_isdigit);
      line.replace(line.begin() + static_cast<std::ptrdiff_t>(port), end, "PORT");
      lines.push_back(line.substr(begin));
    }
    return lines;
  }

  Certificates certificates_;
  TrainingCluster cluster_{
      {.ps = 1,
       .workers = 2,
       .ps_threads = 1,
       .coordinator_flags = {certificates_.Flag(Role::kCoordinator)},
       .ps_flags = {certificates_.Flag(Role::kPs)},
       .worker_flags = {certificates_.Flag(Role::kWorker)},
       .security = {.tls = certificates_.Folder(Role::kAdmin).path, .token_file = ""}}};
  const Somebody ann_ =
      As("admin/ann", {.tls = certificates_.Folder(Role::kAdmin).path, .token_file = ""});
  std::map<std::string, std::string> ids_;  // of tokens, by holder
  std::set<std::string> made_;              // methods that were called with success
  std::vector<std::string> expected_;
};

TEST_F(AuditTest, EveryChangeIsOneLineOfWhoWhatFromWhereAndItsResult) {
  const Somebody bob = WithToken("bob", v1::TOKEN_SUBMIT);
  const auto spec = ParseJobFile(std::string(kJob), "job.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  v1::CreateJobRequest create;
  *create.mutable_spec() = *spec;

  Change(bob, "CreateJob", "jobs/audited-1", create.SerializeAsString());
  const std::string job = "audited-1";
  cluster_.AwaitStep(job, 1);
  Change(bob, "UploadModel",
         "uploads/2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881.safetensors",
         AskedOf("UploadModel", "x"));
  for (int i = 0; i < 2; ++i) Change(bob, "SaveCheckpoint", job);
  grpc::ClientContext context;
  v1::ListCheckpointsRequest list;
  v1::ListCheckpointsResponse checkpoints;
  list.set_parent(job);
  ASSERT_TRUE(cluster_.checkpoints().ListCheckpoints(&context, list, &checkpoints).ok());
  ASSERT_EQ(checkpoints.checkpoints_size(), 2);
  const std::string oldest = checkpoints.checkpoints(0).name();
  Change(bob, "DeleteCheckpoint", oldest);
  v1::UpdateJobRequest update;
  update.set_name(job);
  update.mutable_spec()->set_priority(7);
  update.mutable_update_mask()->add_paths("priority");
  Change(bob, "UpdateJob", job, update.SerializeAsString());
  Change(bob, "SuspendJob", job);
  cluster_.AwaitState(job, v1::SUSPENDED);
  for (const char* method : {"ResumeJob", "CancelJob", "DeleteJob"}) Change(bob, method, job);
  Change(ann_, "DrainMember", "worker-1");
  Change(ann_, "RevokeToken", ids_["bob"]);
  Change(ann_, "Backup", "store", "");

  ASSERT_EQ(Changes().size() + kNoChange.size(), ServedMethods().size());
  made_.insert("CreateToken");
  for (const auto& [method, descriptor] : Changes()) {
    EXPECT_TRUE(made_.contains(method)) << method << " was not called";
  }
  EXPECT_THAT(Lines(), UnorderedElementsAreArray(expected_));
}

TEST_F(AuditTest, SoIsEveryRefusal) {
  const Somebody eve = WithToken("eve", v1::TOKEN_READ);
  const Somebody nobody =
      As("anonymous", {.tls = certificates_.FolderOfNobody(), .token_file = ""});
  const Somebody worker =
      As("worker", {.tls = certificates_.Folder(Role::kWorker).path, .token_file = ""});
  struct Fault {
    std::string object, reason;
  };
  const std::map<std::string, Fault> faults = {
      {"CreateJob", {"faulty", "INVALID_SPEC"}},
      {"UpdateJob", {"none-7", "INVALID_REQUEST"}},
      {"UploadModel", {"", "INVALID_REQUEST"}},
      {"SuspendJob", {"none-7", "JOB_NOT_FOUND"}},
      {"ResumeJob", {"none-7", "JOB_NOT_FOUND"}},
      {"CancelJob", {"none-7", "JOB_NOT_FOUND"}},
      {"DeleteJob", {"none-7", "JOB_NOT_FOUND"}},
      {"SaveCheckpoint", {"none-7", "JOB_NOT_FOUND"}},
      {"DeleteCheckpoint", {"none-7@1", "JOB_NOT_FOUND"}},
      {"DrainMember", {"worker-7", "MEMBER_NOT_FOUND"}},
      {"CreateToken", {"no name", "INVALID_REQUEST"}},
      {"RevokeToken", {"t-00000000", "TOKEN_NOT_FOUND"}},
  };

  for (const auto& [method, descriptor] : Changes()) {
    Refused(nobody, method, "", "", "NO_CREDENTIALS");
    Refused(eve, method, "", "", "NOT_ALLOWED");
    Refused(worker, method, "", "", "NOT_ALLOWED");
    if (method == "Backup") continue;  // its request has nothing that could be wrong
    ASSERT_TRUE(faults.contains(method)) << method << ": what could be wrong with a call of it?";
    const Fault& fault = faults.at(method);
    v1::CreateJobRequest create;
    create.mutable_spec()->set_name(fault.object);
    Refused(ann_, method, fault.object,
            method == "CreateJob" ? create.SerializeAsString() : AskedOf(method, fault.object),
            fault.reason);
  }

  EXPECT_THAT(Lines(), UnorderedElementsAreArray(expected_));
}

// The path forges a line of the log, and the job is valid except for it. If the coordinator
// accepted the job, the job would fail, and the log would quote the path.
TEST_F(AuditTest, AJobAddsNoLineOfItsOwnWriting) {
  const auto spec = ParseJobFile(R"(
name: audited
model: {zoo: {name: gpt, args: {layers: 1, heads: 1, channels: 8, context: 8}}}
data: {text: {path: none, holdout: 0.1}, batch_size: 8}
training: {steps: 1, optimizer: {sgd: {learning_rate: 0.01}}}
resources: {workers: {min: 1, max: 1}, ps: 1}
)",
                                 "job.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  v1::CreateJobRequest create;
  *create.mutable_spec() = *spec;
  const std::string forged = "audit: DeleteJob net-1 by admin/ann from 127.0.0.1:1: OK";
  create.mutable_spec()->mutable_data()->mutable_text()->set_path(
      absl::StrCat("/none\nI20260101 00:00:00.000000 1 access.cc:1] ", forged));

  Refused(ann_, "CreateJob", "audited", create.SerializeAsString(), "INVALID_SPEC");

  EXPECT_THAT(Lines(), UnorderedElementsAreArray(expected_));
}

}  // namespace
}  // namespace muster::audit_test
