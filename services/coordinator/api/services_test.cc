#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "lib/checkpoint/safetensors.h"
#include "lib/fleet/channel.h"
#include "lib/fleet/fleet_client.h"
#include "lib/limits/limits.h"
#include "lib/status/field_fault.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"
#include "lib/telemetry/metrics.h"
#include "lib/telemetry/rpc_metrics.h"
#include "services/coordinator/api/checkpoint_service.h"
#include "services/coordinator/api/fleet_service.h"
#include "services/coordinator/api/job_service.h"
#include "services/coordinator/api/member_service.h"
#include "services/coordinator/coordinator.h"
#include "services/coordinator/testing/made_up_jobs.h"

namespace muster::services_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

// Allows two calls for each kind and connection, three in all.
Admission::LimitsByKind Limits() {
  Admission::LimitsByKind limits;
  limits.fill({.total = 3, .per_client = 2});
  return limits;
}

class ServicesTest : public ::testing::Test {
 protected:
  explicit ServicesTest(const CallWatch::Options& options = {.interval = absl::Milliseconds(10)})
      : watch_(options) {
    std::string folder = ::testing::TempDir() + "/services-XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    auto opened = Coordinator::Open({.state_dir = folder, .metrics = &metrics_});
    EXPECT_TRUE(opened.ok()) << opened.status();
    coordinator_ = *std::move(opened);
    const CallGate gate{&access_, &admission_, &watch_};
    job_service_ = std::make_unique<JobService>(coordinator_.get(), gate);
    fleet_service_ = std::make_unique<FleetService>(coordinator_.get(), &access_);
    checkpoint_service_ = std::make_unique<CheckpointService>(coordinator_.get(), gate);
    member_service_ = std::make_unique<MemberService>(coordinator_.get(), gate);
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(job_service_.get());
    builder.RegisterService(fleet_service_.get());
    builder.RegisterService(checkpoint_service_.get());
    builder.RegisterService(member_service_.get());
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
        interceptors;
    interceptors.push_back(rpc_metrics_.Interceptors());
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
    server_ = builder.BuildAndStart();
    channel_ = DialCoordinator(address());
    jobs_ = v1::JobService::NewStub(channel_);
    fleet_ = v1::FleetService::NewStub(channel_);
    checkpoints_ = v1::CheckpointService::NewStub(channel_);
    members_ = v1::MemberService::NewStub(channel_);
  }
  ~ServicesTest() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // Makes a unary call. Returns its status.
  template <typename Stub, typename Request, typename Response>
  absl::Status Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    Stub& stub, const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kPatience));
    return FromGrpc((stub.*method)(&context, request, response));
  }
  absl::StatusOr<v1::Job> Create(const v1::JobSpec& spec) {
    v1::CreateJobRequest request;
    *request.mutable_spec() = spec;
    v1::Job job;
    RETURN_IF_ERROR(Call(&v1::JobService::Stub::CreateJob, *jobs_, request, &job));
    return job;
  }

  Admission admission_{Limits()};
  const Access access_ = Access::Open();
  CallWatch watch_;
  Metrics metrics_;
  RpcMetrics rpc_metrics_{
      metrics_,
      {v1::JobService::service_full_name(), v1::FleetService::service_full_name(),
       v1::CheckpointService::service_full_name(), v1::MemberService::service_full_name()}};
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<JobService> job_service_;
  std::unique_ptr<FleetService> fleet_service_;
  std::unique_ptr<CheckpointService> checkpoint_service_;
  std::unique_ptr<MemberService> member_service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::FleetService::Stub> fleet_;
  std::unique_ptr<v1::CheckpointService::Stub> checkpoints_;
  std::unique_ptr<v1::MemberService::Stub> members_;
};

class CountingMember : public FleetMember {
 public:
  std::vector<v1::JobReport> Report() override {
    v1::JobReport job;
    job.set_job("unknown-9");
    job.set_generation(3);
    absl::MutexLock lock(&mu_);
    return released_ ? std::vector<v1::JobReport>{} : std::vector<v1::JobReport>{job};
  }
  void Handle(const v1::Directive& directive) override {
    absl::MutexLock lock(&mu_);
    if (directive.has_release() && directive.job() == "unknown-9") released_ = true;
  }
  void CoordinatorLost() override {}

  bool AwaitRelease() {
    absl::MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&released_), kPatience);
  }

 private:
  absl::Mutex mu_;
  bool released_ = false;
};

TEST_F(ServicesTest, FaultsOfASpecHaveTheirFieldPaths) {
  v1::JobSpec spec = LinearSpec();
  spec.mutable_data()->set_batch_size(0);
  spec.mutable_resources()->set_ps(-1);

  const auto job = Create(spec);

  EXPECT_TRUE(absl::IsInvalidArgument(job.status()));
  EXPECT_EQ(ReasonOf(job.status()), "INVALID_SPEC");
  std::vector<std::string> fields;
  for (const FieldFault& fault : FaultsOf(job.status())) fields.push_back(fault.field);
  EXPECT_THAT(fields, Contains("data.batch_size"));
  EXPECT_THAT(fields, Contains("resources.ps"));
}

TEST_F(ServicesTest, UnknownJobsAreNotFoundWithAReason) {
  v1::GetJobRequest request;
  request.set_name("jobs/nobody-1");
  v1::Job job;

  const absl::Status status = Call(&v1::JobService::Stub::GetJob, *jobs_, request, &job);

  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(ReasonOf(status), "JOB_NOT_FOUND");
}

TEST_F(ServicesTest, AWatchEndsAfterTheTerminalState) {
  ASSERT_TRUE(Create(LinearSpec()).ok());
  grpc::ClientContext context;
  v1::WatchJobRequest request;
  request.set_name("line-1");
  auto watch = jobs_->WatchJob(&context, request);
  v1::WatchJobResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.job().state(), v1::QUEUED);

  v1::CancelJobRequest cancel;
  cancel.set_name("line-1");
  v1::Job job;
  ASSERT_TRUE(Call(&v1::JobService::Stub::CancelJob, *jobs_, cancel, &job).ok());

  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.job().state(), v1::CANCELLED);
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_TRUE(watch->Finish().ok());
}

TEST_F(ServicesTest, AnUploadedModelCanBeTrained) {
  SafetensorsHeader header{.tensors = {{.name = "w", .shape = {2, 3}}}};
  std::string file = EncodeSafetensorsHeader(header);
  file.resize(header.file_bytes);
  const auto upload = [&](const std::vector<std::string>& parts,
                          v1::UploadModelResponse* response) {
    grpc::ClientContext context;
    const auto writer = jobs_->UploadModel(&context, response);
    for (const std::string& part : parts) {
      v1::UploadModelRequest request;
      request.set_content(part);
      if (!writer->Write(request)) break;
    }
    writer->WritesDone();
    return FromGrpc(writer->Finish());
  };
  v1::UploadModelResponse stored, again;
  ASSERT_TRUE(upload({file.substr(0, 20), file.substr(20)}, &stored).ok());
  ASSERT_TRUE(upload({file}, &again).ok());
  EXPECT_EQ(stored.path(), again.path());
  EXPECT_EQ(ReasonOf(upload({std::string(limits::kSliceBytesMax + 1, 'x')}, &again)),
            "INVALID_REQUEST");
  EXPECT_EQ(ReasonOf(upload({}, &again)), "INVALID_REQUEST");

  v1::JobSpec spec = LinearSpec();
  spec.mutable_model()->mutable_external()->set_path(stored.path());
  spec.mutable_data()->mutable_external();
  const absl::StatusOr<v1::Job> job = Create(spec);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec().model().external().path(), stored.path());

  spec.mutable_model()->mutable_external()->set_path("uploads/" + std::string(64, '0') +
                                                     ".safetensors");
  const absl::Status missing = Create(spec).status();
  EXPECT_EQ(ReasonOf(missing), "INVALID_SPEC");
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no such upload; send the file again"));
}

TEST_F(ServicesTest, CountsCallsByMethodAndStatus) {
  ASSERT_TRUE(Create(LinearSpec()).ok());
  v1::GetJobRequest unknown;
  unknown.set_name("jobs/nobody-1");
  v1::Job job;
  ASSERT_FALSE(Call(&v1::JobService::Stub::GetJob, *jobs_, unknown, &job).ok());
  {
    grpc::ClientContext context;
    v1::WatchJobRequest request;
    request.set_name("line-1");
    auto watch = jobs_->WatchJob(&context, request);
    v1::WatchJobResponse response;
    ASSERT_TRUE(watch->Read(&response));
    EXPECT_THAT(metrics_.Render(),
                HasSubstr("muster_rpc_in_flight{method=\"JobService.WatchJob\"} 1"));
    context.TryCancel();
    ASSERT_FALSE(watch->Finish().ok());
  }
  server_->Shutdown(std::chrono::system_clock::now());  // waits for all calls in progress

  const std::string text = metrics_.Render();
  for (const char* line :
       {"muster_rpc_requests_total{code=\"OK\",method=\"JobService.CreateJob\"} 1",
        "muster_rpc_requests_total{code=\"NOT_FOUND\",method=\"JobService.GetJob\"} 1",
        "muster_rpc_requests_total{code=\"OK\",method=\"JobService.GetJob\"} 0",
        "muster_rpc_duration_seconds_count{method=\"JobService.GetJob\"} 1",
        "muster_rpc_requests_total{code=\"CANCELLED\",method=\"JobService.WatchJob\"} 1",
        "muster_rpc_in_flight{method=\"JobService.WatchJob\"} 0"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(ServicesTest, AWatchEndsWhenItsClientCancels) {
  ASSERT_TRUE(Create(LinearSpec()).ok());
  grpc::ClientContext context;
  v1::WatchJobRequest request;
  request.set_name("line-1");
  auto watch = jobs_->WatchJob(&context, request);
  v1::WatchJobResponse response;
  ASSERT_TRUE(watch->Read(&response));
  context.TryCancel();
  EXPECT_FALSE(watch->Finish().ok());
}

TEST_F(ServicesTest, AMemberAttachesForgetsUnknownJobsAndLeaves) {
  CountingMember member;
  FleetClient::Options options{.coordinator = address()};
  options.hello.set_member("worker-0");
  options.hello.set_role(v1::WORKER);
  options.hello.set_incarnation("a");
  FleetClient client(std::move(options), &member);
  ASSERT_TRUE(member.AwaitRelease());
  v1::ListMembersResponse members;
  ASSERT_TRUE(Call(&v1::FleetService::Stub::ListMembers, *fleet_, {}, &members).ok());
  ASSERT_EQ(members.members_size(), 1);
  EXPECT_EQ(members.members(0).name(), "worker-0");
  EXPECT_EQ(members.term(), 1);

  client.Detach(kPatience);

  // The end of the stream and this call race. Waiting for the lease (5 s) would take longer.
  const absl::Time deadline = absl::Now() + absl::Seconds(4);
  do {
    ASSERT_TRUE(Call(&v1::FleetService::Stub::ListMembers, *fleet_, {}, &members).ok());
  } while (members.members_size() > 0 && absl::Now() < deadline);
  EXPECT_EQ(members.members_size(), 0);
}

TEST_F(ServicesTest, AWatchOfAllJobsReportsCreationChangeAndDeletion) {
  ASSERT_TRUE(Create(LinearSpec()).ok());
  grpc::ClientContext context;
  auto watch = jobs_->WatchJobs(&context, {});
  v1::WatchJobsResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_TRUE(response.complete());
  ASSERT_EQ(response.jobs_size(), 1);
  EXPECT_EQ(response.jobs(0).waiting().reason(), "STARTING")
      << "the scheduler has not handled it yet";

  ASSERT_TRUE(Create(LinearSpec()).ok());
  ASSERT_TRUE(watch->Read(&response));
  ASSERT_EQ(response.jobs_size(), 1);
  EXPECT_EQ(response.jobs(0).name(), "jobs/line-2");
  v1::CancelJobRequest cancel;
  cancel.set_name("line-1");
  v1::Job job;
  ASSERT_TRUE(Call(&v1::JobService::Stub::CancelJob, *jobs_, cancel, &job).ok());
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.jobs(0).state(), v1::CANCELLED);
  v1::DeleteJobRequest doomed;
  doomed.set_name("line-1");
  google::protobuf::Empty nothing;
  ASSERT_TRUE(Call(&v1::JobService::Stub::DeleteJob, *jobs_, doomed, &nothing).ok());
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_THAT(response.removed(), ::testing::ElementsAre("jobs/line-1"));
  context.TryCancel();
  EXPECT_FALSE(watch->Finish().ok());
}

TEST_F(ServicesTest, AMembersLogIsReadThroughTheCoordinator) {
  CountingMember member;
  LogRing log;
  log.Add("the first line\n");
  FleetClient::Options options{.coordinator = address()};
  options.hello.set_member("worker-0");
  options.hello.set_role(v1::WORKER);
  options.hello.set_incarnation("a");
  options.log = &log;
  FleetClient client(std::move(options), &member);
  ASSERT_TRUE(member.AwaitRelease());

  v1::ReadMemberLogRequest request;
  request.set_name("worker-0");
  v1::ReadMemberLogResponse response;
  ASSERT_TRUE(Call(&v1::FleetService::Stub::ReadMemberLog, *fleet_, request, &response).ok());
  EXPECT_THAT(response.text(), ::testing::StartsWith("the first line\n"));
  EXPECT_EQ(response.incarnation(), "a");
  request.set_offset(response.next_offset());
  log.Add("the last line\n");
  ASSERT_TRUE(Call(&v1::FleetService::Stub::ReadMemberLog, *fleet_, request, &response).ok());
  EXPECT_EQ(response.offset(), request.offset());
  EXPECT_THAT(response.text(), HasSubstr("the last line\n"));
  EXPECT_THAT(response.text(), ::testing::Not(HasSubstr("the first line")));

  // The log of a member that is not attached cannot be read.
  request.set_name("worker-7");
  EXPECT_EQ(ReasonOf(Call(&v1::FleetService::Stub::ReadMemberLog, *fleet_, request, &response)),
            "MEMBER_NOT_FOUND");
}

TEST_F(ServicesTest, ReturnsTheServerInfo) {
  v1::ServerInfo info;
  ASSERT_TRUE(Call(&v1::JobService::Stub::GetServerInfo, *jobs_, {}, &info).ok());
  EXPECT_FALSE(info.version().empty());
  EXPECT_EQ(info.cluster(), coordinator_->store().cluster());
  EXPECT_EQ(info.term(), 1);
  EXPECT_EQ(info.security(), "plaintext");
  EXPECT_EQ(info.limits().lease().seconds(), 5);
  EXPECT_GE(info.server_time().seconds(), info.start_time().seconds());
}

TEST_F(ServicesTest, AStreamWithoutHelloIsRefused) {
  grpc::ClientContext context;
  auto stream = members_->Attach(&context);
  stream->Write({});
  v1::Directive directive;
  EXPECT_FALSE(stream->Read(&directive));
  EXPECT_EQ(ReasonOf(FromGrpc(stream->Finish())), "HELLO_INVALID");
}

TEST_F(ServicesTest, ShardsOfJobsThatDoNotRunAreRefused) {
  ASSERT_TRUE(Create(LinearSpec()).ok());
  grpc::ClientContext context;
  v1::WriteShardResponse response;
  auto stream = members_->WriteShard(&context, &response);
  v1::WriteShardRequest request;
  request.mutable_header()->set_job("line-1");
  stream->Write(request);
  stream->WritesDone();

  const absl::Status status = FromGrpc(stream->Finish());

  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(ReasonOf(status), "JOB_NOT_RUNNING");
}

TEST_F(ServicesTest, AShardStreamWithoutItsHeaderIsRefusedWithAReason) {
  grpc::ClientContext context;
  v1::WriteShardResponse response;
  auto stream = members_->WriteShard(&context, &response);
  v1::WriteShardRequest request;
  request.mutable_slice();
  stream->Write(request);
  stream->WritesDone();

  const absl::Status status = FromGrpc(stream->Finish());

  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(ReasonOf(status), "INVALID_REQUEST");
}

TEST_F(ServicesTest, FaultsOfOtherRequestsAreNotReportedAsSpecFaults) {
  v1::ListJobsRequest list;
  list.set_page_token("x");
  v1::ListJobsResponse jobs;
  v1::GetCheckpointRequest get;
  get.set_name("a@b@c");
  v1::Checkpoint checkpoint;
  v1::CreateJobRequest create;
  *create.mutable_spec() = LinearSpec();
  create.set_request_id(std::string(65, 'r'));
  v1::Job job;

  for (const absl::Status& status :
       {Call(&v1::JobService::Stub::ListJobs, *jobs_, list, &jobs),
        Call(&v1::CheckpointService::Stub::GetCheckpoint, *checkpoints_, get, &checkpoint),
        Call(&v1::JobService::Stub::CreateJob, *jobs_, create, &job)}) {
    EXPECT_EQ(ReasonOf(status), "INVALID_REQUEST") << status;
    EXPECT_EQ(FaultsOf(status).size(), 1);
  }
}

TEST_F(ServicesTest, CheckpointsThatDoNotExistAreNotFound) {
  ASSERT_TRUE(Create(LinearSpec()).ok());
  grpc::ClientContext context;
  v1::ReadCheckpointRequest request;
  request.set_name("line-1");
  auto stream = checkpoints_->ReadCheckpoint(&context, request);
  v1::ReadCheckpointResponse piece;
  EXPECT_FALSE(stream->Read(&piece));
  EXPECT_EQ(ReasonOf(FromGrpc(stream->Finish())), "CHECKPOINT_NOT_FOUND");

  v1::SaveCheckpointRequest save;
  save.set_job("line-1");
  v1::Checkpoint checkpoint;
  const absl::Status saved =
      Call(&v1::CheckpointService::Stub::SaveCheckpoint, *checkpoints_, save, &checkpoint);
  EXPECT_EQ(ReasonOf(saved), "JOB_NOT_RUNNING");
}

TEST_F(ServicesTest, RefusesTooManyWatchesUntilOneEnds) {
  ASSERT_TRUE(Create(LinearSpec()).ok());
  v1::WatchJobRequest request;
  request.set_name("line-1");
  v1::WatchJobResponse response;
  grpc::ClientContext contexts[3];
  auto first = jobs_->WatchJob(&contexts[0], request);
  auto second = jobs_->WatchJob(&contexts[1], request);
  ASSERT_TRUE(first->Read(&response));
  ASSERT_TRUE(second->Read(&response));

  auto third = jobs_->WatchJob(&contexts[2], request);
  EXPECT_FALSE(third->Read(&response));
  EXPECT_EQ(ReasonOf(FromGrpc(third->Finish())), "TOO_MANY_CALLS");
  EXPECT_TRUE(Create(LinearSpec()).ok()) << "other calls are served";

  contexts[0].TryCancel();
  contexts[1].TryCancel();
  (void)first->Finish();
  (void)second->Finish();
  // Repeats until the coordinator has noticed the end of the first stream.
  for (bool served = false; !served;) {
    grpc::ClientContext context;
    auto again = jobs_->WatchJob(&context, request);
    served = again->Read(&response);
    context.TryCancel();
    (void)again->Finish();
  }
}

class ImpatientServicesTest : public ServicesTest {
 protected:
  ImpatientServicesTest()
      : ServicesTest({.interval = absl::Milliseconds(5),
                      .first_message_max = absl::ZeroDuration(),
                      .stall_max = absl::ZeroDuration()}) {}
};

TEST_F(ImpatientServicesTest, EndsAStreamWithoutAFirstMessage) {
  grpc::ClientContext attach, upload;
  auto member = members_->Attach(&attach);
  v1::Directive directive;
  EXPECT_FALSE(member->Read(&directive));
  EXPECT_TRUE(absl::IsCancelled(FromGrpc(member->Finish())));

  v1::WriteShardResponse response;
  auto shard = members_->WriteShard(&upload, &response);
  EXPECT_TRUE(absl::IsCancelled(FromGrpc(shard->Finish())));
}

TEST_F(ServicesTest, SurvivesGarbageAtThePort) {
  for (int i = 0; i < 8; ++i) {
    const int garbage = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(port_)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(garbage, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    const std::string bytes(100'000, static_cast<char>(i * 37));
    send(garbage, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    close(garbage);
  }
  EXPECT_TRUE(Create(LinearSpec()).ok());
}

}  // namespace
}  // namespace muster::services_test
