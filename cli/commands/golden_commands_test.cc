// Tests the output of commands against a coordinator that gives fixed answers.
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "cli/commands/session.h"
#include "cli/framework/interrupt.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "lib/checkpoint/safetensors.h"
#include "lib/job/job_file.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"
#include "proto/muster/v1/access.grpc.pb.h"
#include "proto/muster/v1/checkpoint.grpc.pb.h"
#include "proto/muster/v1/coordinator.grpc.pb.h"

namespace muster::cli::golden_commands_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

v1::Job Trained() {
  v1::Job job;
  job.set_name("jobs/line-1");
  job.set_number(1);
  job.set_state(v1::RUNNING);
  job.set_reason("STARTED");
  job.set_revision(4);
  job.mutable_create_time()->set_seconds(absl::ToUnixSeconds(absl::Now()) - 3600 * 5);
  job.mutable_start_time()->set_seconds(1'800'000'000);
  job.mutable_spec()->set_name("line");
  (*job.mutable_spec()->mutable_labels())["team"] = "vision";
  job.add_workers("worker-0");
  job.add_ps("ps-0");
  job.mutable_progress()->set_step(120);
  job.mutable_progress()->set_total_steps(200);
  job.mutable_progress()->set_loss(0.25);
  v1::JobCondition& runs = *job.add_conditions();
  runs.set_type(v1::JOB_CONDITION_TYPE_RUNNING);
  runs.set_status(true);
  runs.mutable_last_transition_time()->set_seconds(1'800'000'000);
  return job;
}

v1::Job Waiting() {
  v1::Job job = Trained();
  job.set_name("jobs/line-2");
  job.set_number(2);
  job.set_state(v1::QUEUED);
  job.clear_progress();
  job.mutable_spec()->clear_labels();
  job.mutable_waiting()->set_reason("WAITS_FOR_WORKERS");
  job.mutable_waiting()->set_message("needs 1 worker, 0 free of the 1 attached");
  job.mutable_waiting()->set_position(1);
  job.mutable_waiting()->set_queue_length(1);
  return job;
}

v1::Job Ended() {
  v1::Job job = Trained();
  job.set_name("jobs/line-3");
  job.set_number(3);
  job.set_state(v1::FAILED);
  return job;
}

// The output of `submit --wait` and `wait` for Trained() after its state, once it has ended.
constexpr char kEnd[] =
    "  line-1  120 steps\n"
    "first loss         0\n"
    "last loss          0.25\n";

constexpr char kJobFile[] = R"(
name: line
model: {zoo: {name: linear}}
data: {linear: {slope: 3, intercept: 1, samples: 64}, batch_size: 8}
training: {steps: 40, optimizer: {sgd: {learning_rate: 0.1}}}
)";

grpc::Status NotFound(const std::string& name) {
  return ToGrpc(
      WithReason(absl::NotFoundError(absl::StrCat("no job '", name, "'")), "JOB_NOT_FOUND"));
}

class FakeJobs final : public v1::JobService::Service {
 public:
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::Job* job) override {
    *job = request->name() == "jobs/line-1" ? Trained() : Waiting();
    if (request->name() == "jobs/line-3") {
      *job = Ended();
      job->set_checkpoint(ended_checkpoint);
    }
    if (spec) *job->mutable_spec() = *spec;
    return request->name() == "jobs/line-9" ? NotFound("line-9") : grpc::Status::OK;
  }
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* list) override {
    selector = request->selector();
    if (is_empty) return grpc::Status::OK;
    *list->add_jobs() = Waiting();
    *list->add_jobs() = Trained();
    return grpc::Status::OK;
  }
  grpc::Status SuspendJob(grpc::ServerContext*, const v1::SuspendJobRequest* request,
                          v1::Job* job) override {
    suspended.push_back(request->name());
    *job = request->name() == "jobs/line-1" ? Trained() : Waiting();
    return request->name() == "jobs/line-9" ? NotFound("line-9") : grpc::Status::OK;
  }
  grpc::Status ResumeJob(grpc::ServerContext*, const v1::ResumeJobRequest* request,
                         v1::Job* job) override {
    resumed.push_back(*request);
    *job = request->name() == "jobs/line-1" ? Trained() : Waiting();
    return resume_end;
  }
  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest* request,
                         v1::Job* job) override {
    *job = request->name() == "jobs/line-1" ? Trained() : Waiting();
    return grpc::Status::OK;
  }
  grpc::Status DeleteJob(grpc::ServerContext*, const v1::DeleteJobRequest* request,
                         google::protobuf::Empty*) override {
    return request->name() == "jobs/line-9" ? NotFound("line-9") : grpc::Status::OK;
  }
  // Sends a job in `watched_state`, then `later` if it is set.
  grpc::Status WatchJob(grpc::ServerContext*, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) override {
    v1::WatchJobResponse response;
    *response.mutable_job() = Trained();
    response.mutable_job()->set_state(watched_state);
    if (spec) *response.mutable_job()->mutable_spec() = *spec;
    v1::ListEventsResponse events;
    (void)ListEvents(nullptr, nullptr, &events);
    for (int i = events.events_size(); i-- > 0;) {
      if (events.events(i).revision() > request->revision()) {
        *response.add_events() = events.events(i);
      }
    }
    writer->Write(response);
    if (!later) return job_watch_end;
    writer->Write(*later);
    return grpc::Status::OK;
  }
  // Sends two jobs: one ends, the other is deleted. Then the watch ends with `watch_end`.
  grpc::Status WatchJobs(grpc::ServerContext*, const v1::WatchJobsRequest* request,
                         grpc::ServerWriter<v1::WatchJobsResponse>* writer) override {
    selector = request->selector();
    v1::WatchJobsResponse all, same, change;
    same.add_jobs()->CopyFrom(Trained());  // rows do not show the throughput
    same.mutable_jobs(0)->mutable_progress()->set_samples_per_second(812);
    *all.add_jobs() = Waiting();
    *all.add_jobs() = Trained();
    all.set_complete(true);
    v1::Job& ended = *change.add_jobs() = Trained();
    ended.set_state(v1::SUCCEEDED);
    ended.set_revision(5);
    ended.mutable_progress()->set_step(200);
    change.add_removed("jobs/line-2");
    writer->Write(all);
    writer->Write(v1::WatchJobsResponse());
    writer->Write(same);
    writer->Write(change);
    return watch_end;
  }
  grpc::Status UpdateJob(grpc::ServerContext*, const v1::UpdateJobRequest* request,
                         v1::Job* job) override {
    update = *request;
    *job = Trained();
    return grpc::Status::OK;
  }
  grpc::Status CreateJob(grpc::ServerContext*, const v1::CreateJobRequest* request,
                         v1::Job* job) override {
    created = request->spec();
    *job = Waiting();
    return grpc::Status::OK;
  }
  grpc::Status ListEvents(grpc::ServerContext*, const v1::ListEventsRequest* request,
                          v1::ListEventsResponse* list) override {
    if (request != nullptr && !request->page_token().empty()) {  // events after a revision
      v1::JobEvent& event = *list->add_events();
      event.set_job("line-1");
      event.set_revision(5);
      event.mutable_time()->set_seconds(1'800'000'200);
      event.set_state(v1::SUCCEEDED);
      event.set_reason("COMPLETED");
      event.set_message("trained 200 steps");
      return grpc::Status::OK;
    }
    for (int i = checkpoints; i > 0; --i) {  // newest first
      v1::JobEvent& event = *list->add_events();
      event.set_job("line-1");
      event.set_revision(i + 2);
      event.mutable_time()->set_seconds(1'800'000'099 + i);
      event.set_state(v1::RUNNING);
      event.set_reason("CHECKPOINT_COMMITTED");
      event.set_message(absl::StrCat("line-1@", 10 * i));
    }
    for (int i = 1; i >= 0; --i) {
      v1::JobEvent& event = *list->add_events();
      event.set_job("line-1");
      event.set_revision(i + 1);
      event.mutable_time()->set_seconds(1'800'000'000 + i);
      event.set_state(i == 0 ? v1::QUEUED : v1::RUNNING);
      event.set_reason(i == 0 ? "SUBMITTED" : "STARTED");
      event.set_message(i == 0 ? "waits for members" : "steps 0 to 200");
    }
    return grpc::Status::OK;
  }
  grpc::Status ReadJobMetrics(grpc::ServerContext*, const v1::ReadJobMetricsRequest* request,
                              v1::ReadJobMetricsResponse* metrics) override {
    v1::MetricSeries loss, evaluation;
    loss.set_name("loss");
    evaluation.set_name("evaluation_loss");
    for (int64_t step = 0; step < 4; ++step) {
      if (step < request->first_step()) continue;
      loss.add_steps(step);
      loss.add_values(4 - static_cast<double>(step));
      loss.add_times(1'800'000'100.5 + static_cast<double>(step));
    }
    if (request->first_step() <= 2) {
      evaluation.add_steps(2);
      evaluation.add_values(2.5);
    }
    *metrics->add_series() = loss;
    *metrics->add_series() = evaluation;
    metrics->set_steps(4);
    return grpc::Status::OK;
  }
  grpc::Status ReadJobTiming(grpc::ServerContext*, const v1::ReadJobTimingRequest*,
                             v1::ReadJobTimingResponse* response) override {
    v1::MemberTiming& member = *response->add_members();
    member.set_member("worker-0");
    v1::StepTiming& timing = *member.mutable_timing();
    timing.set_steps(10);
    timing.set_samples(80);
    timing.set_step_seconds(1);
    timing.set_compute_seconds(0.9);
    timing.set_wait_seconds(0.1);
    return grpc::Status::OK;
  }

  grpc::Status ReadJobLinks(grpc::ServerContext*, const v1::ReadJobLinksRequest* request,
                            v1::ReadJobLinksResponse* response) override {
    if (request->name() != "jobs/line-1") return NotFound(request->name());
    v1::MemberLinks& member = *response->add_members();
    member.set_member("worker-0");
    v1::LinkReport& link = *member.add_links();
    link.set_peer("ps-0/0");
    link.set_transport("tcp");
    link.set_security("auth");
    link.set_network("tcp");
    link.set_device("eth0");
    link.set_fallback("one host, but another network namespace");
    link.set_sent_bytes(3 << 20);
    link.set_received_bytes(5 << 10);
    return grpc::Status::OK;
  }

  std::string selector;
  bool is_empty = false;  // lists no jobs
  int checkpoints = 0;    // number of checkpoint events
  v1::JobState watched_state = v1::SUCCEEDED;
  std::optional<v1::WatchJobResponse> later;  // second message of WatchJob
  grpc::Status job_watch_end;
  grpc::Status watch_end = grpc::Status(grpc::StatusCode::CANCELLED, "enough was seen");
  std::string ended_checkpoint = "jobs/line-3/checkpoints/100";  // of line-3
  std::optional<v1::JobSpec> spec;  // returned by GetJob instead of the default one
  std::vector<std::string> suspended;
  std::vector<v1::ResumeJobRequest> resumed;
  grpc::Status resume_end;
  v1::UpdateJobRequest update;
  v1::JobSpec created;
};

constexpr char kLogPrefix[] = "I20261129 02:11:46.746656  2376 trainer.cc:99] ";

class FakeFleet final : public v1::FleetService::Service {
 public:
  bool insecure = false;
  std::string metrics_url = "http://127.0.0.1:9402/metrics";

  grpc::Status ReadMemberLog(grpc::ServerContext*, const v1::ReadMemberLogRequest* request,
                             v1::ReadMemberLogResponse* log) override {
    if (request->has_offset()) return ReadOn(*request, *log);
    log->set_text(absl::StrCat("one\n", kLogPrefix, "line-2: of another job\ntwo\n", kLogPrefix,
                               "line-1: two\n", request->name(), " three\n"));
    log->set_next_offset(23);
    return grpc::Status::OK;
  }
  grpc::Status DrainMember(grpc::ServerContext*, const v1::DrainMemberRequest* request,
                           v1::DrainMemberResponse*) override {
    if (request->name() == "worker-0") return grpc::Status::OK;
    return ToGrpc(WithReason(absl::NotFoundError("nobody of that name"), "MEMBER_NOT_FOUND"));
  }
  grpc::Status ListMembers(grpc::ServerContext*, const v1::ListMembersRequest*,
                           v1::ListMembersResponse* list) override {
    v1::Member& member = *list->add_members();
    member.set_name("worker-0");
    member.set_role(v1::WORKER);
    member.set_host("here");
    member.set_pid(42);
    member.add_jobs("line-1");
    member.mutable_report_time()->set_seconds(absl::ToUnixSeconds(absl::Now()) - 3600 * 5);
    member.set_metrics_url(metrics_url);
    list->set_term(3);
    member.set_insecure(insecure);
    list->set_coordinator_insecure(insecure);
    return grpc::Status::OK;
  }

 private:
  // worker-0 logs one more line, then the reader loses its permission. Other members are replaced
  // by a new process.
  static grpc::Status ReadOn(const v1::ReadMemberLogRequest& request,
                             v1::ReadMemberLogResponse& log) {
    if (request.name() != "worker-0") {
      log.set_incarnation("another");
      if (request.offset() == 0) log.set_text("new process\n");
      return grpc::Status::OK;
    }
    if (request.offset() != 23) return ToGrpc(absl::PermissionDeniedError("it was revoked"));
    log.set_text("four\n");
    log.set_next_offset(28);
    return grpc::Status::OK;
  }
};

class FakeAccess final : public v1::AccessService::Service {
 public:
  grpc::Status CreateToken(grpc::ServerContext*, const v1::CreateTokenRequest* request,
                           v1::CreateTokenResponse* response) override {
    created = *request;
    *response->mutable_token() = TokenOf("t-4", request->holder(), kFarAhead);
    response->mutable_token()->set_scope(request->scope());
    response->set_secret("a-secret");
    return grpc::Status::OK;
  }
  grpc::Status ListTokens(grpc::ServerContext*, const v1::ListTokensRequest*,
                          v1::ListTokensResponse* list) override {
    *list->add_tokens() = TokenOf("t-3", "ci", kFarAhead);
    *list->add_tokens() = TokenOf("t-2", "ann", kFarAhead);
    list->mutable_tokens(1)->mutable_revoke_time()->set_seconds(kLongAgo);
    *list->add_tokens() = TokenOf("t-1", "ann", kLongAgo + 60);
    return grpc::Status::OK;
  }
  grpc::Status RevokeToken(grpc::ServerContext*, const v1::RevokeTokenRequest* request,
                           v1::AccessToken* token) override {
    *token = TokenOf(request->id(), "ci", kFarAhead);
    if (request->id() == "t-3") return grpc::Status::OK;
    return ToGrpc(WithReason(absl::NotFoundError("no such token"), "TOKEN_NOT_FOUND"));
  }

  v1::CreateTokenRequest created;

 private:
  static constexpr int64_t kLongAgo = 1'000'000'000, kFarAhead = 4'000'000'000;

  static v1::AccessToken TokenOf(const std::string& id, const std::string& holder, int64_t ends) {
    v1::AccessToken token;
    token.set_id(id);
    token.set_holder(holder);
    token.set_scope(v1::TOKEN_READ);
    token.mutable_create_time()->set_seconds(kLongAgo);
    token.mutable_expire_time()->set_seconds(ends);
    return token;
  }
};

class FakeCheckpoints final : public v1::CheckpointService::Service {
 public:
  grpc::Status ListCheckpoints(grpc::ServerContext*, const v1::ListCheckpointsRequest*,
                               v1::ListCheckpointsResponse* list) override {
    v1::Checkpoint& checkpoint = *list->add_checkpoints();
    checkpoint.set_name("jobs/line-1/checkpoints/100");
    checkpoint.set_job("line-1");
    checkpoint.set_step(100);
    checkpoint.set_size_bytes(2048);
    checkpoint.mutable_create_time()->set_seconds(absl::ToUnixSeconds(absl::Now()) - 3600 * 5);
    checkpoint.set_directory("/state/100");
    return grpc::Status::OK;
  }
  grpc::Status SaveCheckpoint(grpc::ServerContext*, const v1::SaveCheckpointRequest* request,
                              v1::Checkpoint* checkpoint) override {
    if (request->job() != "line-1") return NotFound(request->job());
    v1::ListCheckpointsResponse list;
    (void)ListCheckpoints(nullptr, nullptr, &list);
    *checkpoint = list.checkpoints(0);
    return grpc::Status::OK;
  }
  grpc::Status DeleteCheckpoint(grpc::ServerContext*, const v1::DeleteCheckpointRequest* request,
                                google::protobuf::Empty*) override {
    if (request->name() == "line-1@2") return grpc::Status::OK;
    return ToGrpc(WithReason(absl::FailedPreconditionError("is the last"), "CHECKPOINT_NEEDED"));
  }
  // Interrupts the reader at the start, and writes until the reader is gone.
  grpc::Status ReadCheckpoint(grpc::ServerContext*, const v1::ReadCheckpointRequest*,
                              grpc::ServerWriter<v1::ReadCheckpointResponse>* writer) override {
    v1::ReadCheckpointResponse part;
    part.set_file("manifest.json");
    part.set_data("{");
    part.set_file_bytes(int64_t{1} << 40);
    part.set_crc32c(Crc32c(absl::MakeConstSpan(reinterpret_cast<const std::byte*>("{"), 1)));
    for (int64_t offset = 0; writer->Write(part); part.set_offset(++offset)) {
      if (offset == 1) kill(getpid(), SIGINT);
    }
    return grpc::Status::OK;
  }
};

// Constructed before any other thread exists, as Interrupt requires.
Interrupt* const process_interrupt = new Interrupt;

class GoldenCommandsTest : public ::testing::Test {
 protected:
  GoldenCommandsTest() {
    setenv("LC_ALL", "C", 1);
    setenv("XDG_CONFIG_HOME", absl::StrCat(::testing::TempDir(), "/config-", getpid()).c_str(), 1);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&jobs_);
    builder.RegisterService(&fleet_);
    builder.RegisterService(&checkpoints_);
    builder.RegisterService(&access_);
    server_ = builder.BuildAndStart();
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // Returns the output of `muster words...`, followed by the exit code if it is not 0.
  std::string Run(std::vector<std::string> words, Interrupt* interrupt = nullptr) {
    words.insert(words.begin(), {"--server", address()});
    return RunAnywhere(std::move(words), interrupt);
  }
  std::string RunAnywhere(std::vector<std::string> words, Interrupt* interrupt = nullptr) {
    words.insert(words.begin(), "muster");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    Session session;
    session.interrupt = interrupt;
    ::testing::internal::CaptureStdout();
    const int code = RunCommandLine(static_cast<int>(argv.size()), argv.data(), session);
    std::string text = ::testing::internal::GetCapturedStdout();
    if (code != 0) absl::StrAppend(&text, "exit ", code, "\n");
    return text;
  }

  FakeJobs jobs_;
  FakeFleet fleet_;
  FakeCheckpoints checkpoints_;
  FakeAccess access_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(GoldenCommandsTest, List) {
  EXPECT_EQ(Run({"list"}),
            "NAME    STATE    STEP     LOSS  WORKERS  PS   AGE\n"
            "line-2  QUEUED   0        -     0/1      0/1  5h\n"
            "line-1  RUNNING  120/200  0.25  1/1      1/1  5h\n");
  EXPECT_EQ(Run({"list", "--sort", "name", "-l", "team=vision", "-o", "wide"}),
            "NAME    STATE    STEP     LOSS  WORKERS  PS   AGE  PRIORITY  LABELS       CHECKPOINT  "
            "WHY\n"
            "line-1  RUNNING  120/200  0.25  1/1      1/1  5h   0         team=vision  -           "
            "STARTED\n"
            "line-2  QUEUED   0        -     0/1      0/1  5h   0         -            -           "
            "needs 1 worker, 0 free of the 1 attached (1 of 1 in the queue)\n");
  EXPECT_EQ(jobs_.selector, "team=vision");
  EXPECT_EQ(Run({"list", "-o", "name"}), "line-2\nline-1\n");
  EXPECT_EQ(Run({"list", "-o", "jsonpath={.jobs[*].state}"}), "QUEUED RUNNING\n");
}

TEST_F(GoldenCommandsTest, AWatchedListContinuesWithRowsOnly) {
  EXPECT_EQ(Run({"list", "-w", "-l", "team=vision"}),
            "NAME    STATE    STEP     LOSS  WORKERS  PS   AGE\n"
            "line-2  QUEUED   0        -     0/1      0/1  5h\n"
            "line-1  RUNNING  120/200  0.25  1/1      1/1  5h\n"
            "line-1  SUCCEEDED  200/200  0.25  1/1      1/1  5h\n"
            "line-2  is gone\n");
  EXPECT_EQ(jobs_.selector, "team=vision");
  EXPECT_EQ(Run({"list", "-w", "-o", "name"}), "line-2\nline-1\nline-1\n");
  EXPECT_EQ(Run({"list", "-w", "--sort", "name"}), "exit 2\n");
  jobs_.watch_end = ToGrpc(absl::PermissionDeniedError("it was revoked"));
  EXPECT_EQ(Run({"list", "-w", "-o", "name"}), "line-2\nline-1\nline-1\nexit 5\n");
}

TEST_F(GoldenCommandsTest, Get) {
  EXPECT_EQ(Run({"get", "line-1"}),
            "NAME    STATE    STEP     LOSS  WORKERS  PS   AGE\n"
            "line-1  RUNNING  120/200  0.25  1/1      1/1  5h\n");
}

TEST_F(GoldenCommandsTest, GetPrintsAJobFileThatSubmitAccepts) {
  jobs_.spec = ParseJobFile(kJobFile, "line.yaml", {}).value();
  const std::string spec = Run({"get", "line-1", "-o", "spec"});
  EXPECT_THAT(spec, StartsWith("name: line\nmodel:\n  zoo:\n"));
  const std::string file = absl::StrCat(::testing::TempDir(), "/again-", getpid(), ".yaml");
  std::ofstream(file) << spec;
  EXPECT_EQ(Run({"submit", file, "-o", "name"}), "line-2\n");
  EXPECT_EQ(jobs_.created.SerializeAsString(), jobs_.spec->SerializeAsString());
  EXPECT_EQ(Run({"get", "line-1", "line-2", "-o", "spec"}), absl::StrCat(spec, "---\n", spec));
  EXPECT_EQ(Run({"list", "-o", "spec"}), "exit 2\n") << "a list has no complete specs";
}

TEST_F(GoldenCommandsTest, SubmitPrintsTheJobAndWithWaitItsResult) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/line-", getpid(), ".yaml");
  std::ofstream(file) << kJobFile;
  EXPECT_EQ(Run({"submit", file, "--set", "priority=3"}),
            "NAME    STATE   STEP  LOSS  WORKERS  PS   AGE\n"
            "line-2  QUEUED  0     -     0/1      0/1  5h\n");
  EXPECT_EQ(jobs_.created.name(), "line");
  EXPECT_EQ(jobs_.created.priority(), 3);
  EXPECT_EQ(Run({"submit", file, "--wait"}), absl::StrCat("SUCCEEDED", kEnd));
  EXPECT_EQ(Run({"submit", file, "--wait", "-o", "name"}), "line-1\n");
  jobs_.watched_state = v1::FAILED;
  EXPECT_EQ(Run({"submit", file, "--wait"}), absl::StrCat("FAILED", kEnd, "exit 1\n"));
  EXPECT_EQ(Run({"submit", file, "--set", "priority=high"}), "exit 2\n");
  EXPECT_EQ(Run({"submit", file, "--wait-for-coordinator", "1m", "-o", "name"}), "line-2\n");
  EXPECT_EQ(Run({"submit", file, "--wait-for-coordinator", "soon"}), "exit 2\n");
}

TEST_F(GoldenCommandsTest, Validate) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/line-", getpid(), ".yaml");
  std::ofstream(file) << kJobFile;
  EXPECT_EQ(Run({"validate", file}), absl::StrCat("OK  ", file, "\n"));
  EXPECT_EQ(Run({"validate", file, "-o", "name"}), "line\n");
  const std::string elastic = "resources.workers={min: 1, max: 4}";
  EXPECT_EQ(
      Run({"validate", file, "--set", elastic}),
      absl::StrCat("OK  ", file, "\nwith resources.workers.logical: 4 the result has the same ",
                   "bits for any number of workers\n"));
  EXPECT_EQ(Run({"validate", file, "--set", elastic, "--set", "sync.mode=asp"}),
            absl::StrCat("OK  ", file, "\n"))
      << "asp has no logical workers";
  EXPECT_EQ(Run({"validate", file, "--set", elastic, "--set", "resources.workers.logical=6"}),
            absl::StrCat("OK  ", file, "\n6 logical workers of 1 or 2 samples; useful numbers of ",
                         "workers: 1, 2, 4, 6\n"));
  EXPECT_EQ(Run({"validate", file, "--set", "resources.workers.logical=4"}),
            absl::StrCat("OK  ", file, "\n4 logical workers of 2 samples; useful numbers of ",
                         "workers: 1, 2, 4\n"));
  EXPECT_EQ(Run({"validate", file, "--set", "resources.workers.logical=8"}),
            absl::StrCat("OK  ", file, "\n8 logical workers of 1 sample; useful numbers of ",
                         "workers: 1, 2, 4, 8\n"));
  EXPECT_EQ(Run({"validate", file, "--set", "resources.workers.logical=1"}),
            absl::StrCat("OK  ", file, "\n1 logical worker of 8 samples; useful numbers of ",
                         "workers: 1\n"));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Run({"validate", file, "--set", "data.batch_size=0"}), "exit 2\n");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("data.batch_size"));
}

TEST_F(GoldenCommandsTest, WaitPrintsTheJobAndFailsIfItEndsInAnotherState) {
  EXPECT_EQ(Run({"wait", "line-1"}),
            "NAME    STATE      STEP     LOSS  WORKERS  PS   AGE\n"
            "line-1  SUCCEEDED  120/200  0.25  1/1      1/1  5h\n");
  EXPECT_EQ(Run({"wait", "line-1", "--for", "running"}),
            absl::StrCat("SUCCEEDED", kEnd, "exit 1\n"));
  jobs_.watched_state = v1::FAILED;
  EXPECT_EQ(Run({"wait", "line-1"}), absl::StrCat("FAILED", kEnd, "exit 1\n"));
}

TEST_F(GoldenCommandsTest, WaitNoticesAStateThatHasPassedByTheNextUpdate) {
  jobs_.watched_state = v1::QUEUED;
  v1::WatchJobResponse& later = jobs_.later.emplace();
  *later.mutable_job() = Trained();
  later.mutable_job()->set_state(v1::SUCCEEDED);
  later.mutable_job()->set_revision(6);
  later.add_events()->set_revision(5);
  later.mutable_events(0)->set_state(v1::RUNNING);
  later.add_events()->set_revision(6);
  later.mutable_events(1)->set_state(v1::SUCCEEDED);
  EXPECT_EQ(Run({"wait", "line-1", "--for", "running", "-o", "name"}), "line-1\n");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Run({"wait", "line-1", "--for", "suspended", "-o", "name"}), "line-1\nexit 1\n");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("line-1 has ended (SUCCEEDED) and was not SUSPENDED"));
}

TEST_F(GoldenCommandsTest, Explain) {
  EXPECT_EQ(Run({"explain", "checkpoint.keep_last"}),
            "checkpoint.keep_last  (whole number)\n"
            "  older ones are pruned after a newer is committed; default 3, 0: keep all\n");
}

TEST_F(GoldenCommandsTest, InitPrintsAFileOrCreatesIt) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/init-", getpid(), ".yaml");
  EXPECT_EQ(Run({"init", file, "--model", "mlp"}), absl::StrCat(file, "\n"));
  std::ifstream made(file);
  const std::string text((std::istreambuf_iterator<char>(made)), {});
  EXPECT_THAT(text, HasSubstr("\nname: mlp"));
  EXPECT_EQ(Run({"init", "--model", "mlp"}), absl::StrReplaceAll(text, {{file, "job.yaml"}}));
  EXPECT_EQ(Run({"init", file, "--model", "gpt"}), "exit 6\n")
      << "an existing file is not overwritten";
  EXPECT_EQ(Run({"init", "--onnx", "/no/such/file.onnx"}), "exit 3\n");
  EXPECT_EQ(Run({"init", "--onnx", "model.onnx", "--model", "gpt"}), "exit 2\n");
}

// The last line depends on the machine, so only its start is compared.
TEST_F(GoldenCommandsTest, ModelDescribe) {
  EXPECT_THAT(
      Run({"model", "describe", "--zoo", "mlp"}),
      StartsWith("LAYER          OP                   OUTPUT       PARAMETERS  GFLOP\n"
                 "layers.0       Linear               f32[8, 256]  200,960     0.003\n"
                 "layers.0.relu  Relu                 f32[8, 256]\n"
                 "layers.1       Linear               f32[8, 128]  32,896      0.001\n"
                 "layers.1.relu  Relu                 f32[8, 128]\n"
                 "logits         Linear               f32[8, 10]   1,290       0.000\n"
                 "loss           SoftmaxCrossEntropy  f32[]\n"
                 "correct        CorrectCount         f32[]\n"
                 "\n"
                 "INPUT   TYPE         VALUES\n"
                 "input   f32[8, 784]\n"
                 "target  i32[8]       0 to 9\n"
                 "\n"
                 "OUTPUT   TYPE        USE\n"
                 "logits   f32[8, 10]  the loss reads it\n"
                 "loss     f32[]       the loss\n"
                 "correct  f32[]       right predictions\n"
                 "\n"
                 "parameters    235,146 trained\n"
                 "batch         8, fp32: 0.004 GFLOP forward, 0.008 GFLOP a step\n"
                 "memory        44.6 KiB activations + 1.8 MiB parameters and gradients = 1.8 MiB\n"
                 "device        cpu ("));
  EXPECT_EQ(Run({"model", "describe", "--zoo", "abacus"}), "exit 2\n");
}

// Returns the words that describe a gpt of two layers, 6 heads and 257 tokens.
std::vector<std::string> DescribeGpt(const std::string& degree, const std::string& batch = "4") {
  std::vector<std::string> words = {"model", "describe",          "--zoo", "gpt", "--batch",
                                    batch,   "--tensor-parallel", degree};
  for (const char* argument :
       {"layers=2", "heads=6", "channels=48", "context=2", "vocabulary=257"}) {
    words.insert(words.end(), {"--arg", argument});
  }
  return words;
}

// A value has 4 bytes. Rank 0 has 2 heads of 6 and 65 tokens of 257.
TEST_F(GoldenCommandsTest, ModelDescribeComparesTheRanksWithOneDevice) {
  EXPECT_THAT(
      Run(DescribeGpt("4")),
      HasSubstr("\n\n"
                "DEVICE        VALUES     GRADIENTS  ACTIVATIONS  SUM        RATIO\n"
                "alone         318.0 KiB  318.0 KiB  60.3 KiB     696.3 KiB  1.00\n"
                "rank 0        88.1 KiB   88.1 KiB   29.5 KiB     205.8 KiB  0.30\n"
                "rank 1        87.8 KiB   87.8 KiB   29.4 KiB     204.9 KiB  0.29\n"
                "ranks 2 to 3  75.6 KiB   75.6 KiB   27.4 KiB     178.6 KiB  0.26\n"
                "\n"
                "DIVIDED PARAMETER                     COUNT  SHAPE      DIMENSION  LARGEST PART\n"
                "token_embedding.weight                1      [257, 48]  0          [65, 48]\n"
                "blocks.*.attention.qkv.weight         2      [144, 48]  0          [48, 48]\n"
                "blocks.*.attention.qkv.bias           2      [144]      0          [48]\n"
                "blocks.*.attention.projection.weight  2      [48, 48]   1          [48, 16]\n"
                "blocks.*.mlp.expand.weight            2      [192, 48]  0          [48, 48]\n"
                "blocks.*.mlp.expand.bias              2      [192]      0          [48]\n"
                "blocks.*.mlp.contract.weight          2      [48, 192]  1          [48, 48]\n"
                "head.weight                           1      [257, 48]  0          [65, 48]\n"
                "\n"
                "15 of 29 parameters are whole on every rank: 768 values, 3.0 KiB\n"
                "\n"
                "parameters    81,408 trained\n"));
  EXPECT_THAT(Run(DescribeGpt("1")), Not(HasSubstr("DEVICE")));
}

TEST_F(GoldenCommandsTest, ModelDescribeHasOneLineForEqualRanks) {
  EXPECT_THAT(Run({"model", "describe", "--zoo", "mlp", "--tensor-parallel", "2"}),
              HasSubstr("DEVICE        VALUES     GRADIENTS  ACTIVATIONS  SUM        RATIO\n"
                        "alone         918.5 KiB  918.5 KiB  44.6 KiB     1.8 MiB    1.00\n"
                        "ranks 0 to 1  462.0 KiB  462.0 KiB  36.9 KiB     961.0 KiB  0.51\n"
                        "\n"));
}

TEST_F(GoldenCommandsTest, ModelDescribeSaysWhetherTheLargestRankFits) {
  EXPECT_THAT(Run(DescribeGpt("6")), HasSubstr(" available: the largest rank fits\n"));
  std::vector<std::string> words = DescribeGpt("6", /*batch=*/"1048576");
  words.insert(words.end(), {"--arg", "context=4096", "--arg", "vocabulary=200"});
  EXPECT_THAT(Run(words), HasSubstr(" available: the largest rank does NOT fit; use a larger "
                                    "--tensor-parallel, a smaller batch or "));
}

TEST_F(GoldenCommandsTest, ModelDescribeHasEveryRankInJson) {
  const auto json = [&](const std::string& path) {
    std::vector<std::string> words = DescribeGpt("4");
    words.insert(words.end(), {"-o", absl::StrCat("jsonpath={.tensor_parallel.", path, "}")});
    return Run(words);
  };
  EXPECT_EQ(json("rank_bytes[*].values"), "90240 89856 77376 77376\n");
  EXPECT_EQ(json("rank_bytes[*].gradients"), "90240 89856 77376 77376\n");
  EXPECT_EQ(json("alone_bytes.values"), "325632\n");
  EXPECT_EQ(json("whole_parameters"), "15\n");
  EXPECT_EQ(json("whole_values"), "768\n");
  EXPECT_EQ(json("whole_bytes"), "3072\n");
  EXPECT_EQ(json("divided[3].name"), "blocks.0.attention.projection.weight\n");
  EXPECT_EQ(json("divided[3].shape[*]"), "48 48\n");
  EXPECT_EQ(json("divided[3].dimension"), "1\n");
  EXPECT_EQ(json("divided[3].largest_part[*]"), "48 16\n");
}

TEST_F(GoldenCommandsTest, ModelDescribeRefusesRanksThatCannotShareTheModel) {
  const auto error = [&](const std::vector<std::string>& words) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Run(words), "exit 2\n");
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(error(DescribeGpt("8")),
              HasSubstr("node 'blocks.0.attention' (SelfAttention) has 6 heads, which 8 "
                        "tensor-parallel devices cannot share: use at most 6"));
  EXPECT_THAT(error({"model", "describe", "--zoo", "linear", "--tensor-parallel", "2"}),
              HasSubstr("the model has no part that 2 tensor-parallel devices can share"));
  for (const char* degree : {"0", "65"}) {
    EXPECT_THAT(error(DescribeGpt(degree)), HasSubstr("--tensor-parallel")) << degree;
  }
}

TEST_F(GoldenCommandsTest, BenchModelTimesOneRankAlone) {
  const auto bench = [&](const std::string& degree, const std::string& output) {
    std::vector<std::string> words = DescribeGpt(degree);
    words[1] = "model";
    words[0] = "bench";
    words.insert(words.end(), {"--steps", "1"});
    if (!output.empty()) words.insert(words.end(), {"-o", output});
    return Run(words);
  };
  const auto flops = [&](const std::string& degree) {
    double number = 0;
    EXPECT_TRUE(absl::SimpleAtod(bench(degree, "jsonpath={.step_flops}"), &number));
    return number;
  };
  EXPECT_NEAR(flops("3") / flops("1"), 1 / 3.0, 0.05);
  EXPECT_THAT(bench("3", ""), HasSubstr("fp32, rank 0 of 3 alone\n"));
  EXPECT_EQ(bench("3", "jsonpath={.tensor_parallel}"), "3\n");
}

TEST_F(GoldenCommandsTest, DescribesTheParametersOfAnExternalModel) {
  const std::string stem = absl::StrCat(::testing::TempDir(), "/external-", getpid());
  SafetensorsHeader header{
      .tensors = {{.name = "w", .shape = {2, 3}}, {.name = "mean", .shape = {}}},
      .metadata = {{"muster.statistics", "[\"mean\"]"}}};
  std::string model = EncodeSafetensorsHeader(header);
  model.resize(header.file_bytes);
  std::ofstream(stem + ".safetensors", std::ios::binary) << model;
  std::ofstream(stem + ".yaml") << "name: torch\nmodel: {external: {path: " << stem
                                << ".safetensors}}\ndata: {external: {}, batch_size: 8}\n"
                                << "training: {steps: 1, optimizer: {sgd: {learning_rate: 1}}}\n";
  EXPECT_EQ(Run({"model", "describe", stem + ".yaml"}),
            "PARAMETER  SHAPE   ROLE\n"
            "w          [2, 3]  trained\n"
            "mean       []      statistic\n"
            "\n"
            "parameters    6 trained, 1 statistics\n");
  EXPECT_THAT(Run({"model", "describe", stem + ".yaml", "-o", "json"}),
              HasSubstr("\"parameters_trained\": 6"));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Run({"model", "describe", stem + ".yaml", "--tensor-parallel", "2"}), "exit 2\n");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("--tensor-parallel: not with model.external"));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Run({"bench", "model", stem + ".yaml"}), "exit 2\n");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("only its program can compute"));
}

TEST_F(GoldenCommandsTest, Version) {
  EXPECT_THAT(Run({"version"}), MatchesRegex("muster [0-9.]+\ncommit .+\nbuild .+, .+\n"));
  EXPECT_THAT(Run({"version", "-o", "name"}), MatchesRegex("[0-9.]+\n"));
}

TEST_F(GoldenCommandsTest, SeveralJobsInOneCommand) {
  EXPECT_EQ(Run({"get", "line-1", "line-2", "-o", "name"}), "line-1\nline-2\n");
  EXPECT_EQ(Run({"get", "line-9", "line-1", "-o", "name"}), "line-1\nexit 3\n")
      << "successes are printed, the failure decides the exit code";
}

TEST_F(GoldenCommandsTest, SuspendResumeCancelAndDeleteTakeSeveralJobs) {
  EXPECT_EQ(Run({"suspend", "line-1", "line-2", "-o", "name"}), "line-1\nline-2\n");
  EXPECT_EQ(Run({"suspend", "line-9", "line-1", "-o", "name"}), "line-1\nexit 3\n");
  EXPECT_EQ(Run({"resume", "line-1", "line-2", "--ps", "3", "-o", "name"}), "line-1\nline-2\n");
  ASSERT_EQ(jobs_.resumed.size(), 2);
  EXPECT_EQ(jobs_.resumed[1].name(), "jobs/line-2");
  EXPECT_EQ(jobs_.resumed[1].resources().ps(), 3);
  EXPECT_EQ(Run({"cancel", "line-1", "line-2", "-o", "name"}), "line-1\nline-2\n");
  EXPECT_EQ(Run({"delete", "line-1", "line-9"}), "exit 3\n");
}

TEST_F(GoldenCommandsTest, ScaleSuspendsAndContinuesWithOtherMembers) {
  jobs_.spec = ParseJobFile(kJobFile, "line.yaml", {}).value();
  jobs_.watched_state = v1::SUSPENDED;
  EXPECT_EQ(Run({"scale", "line-1", "--workers", "4", "--ps", "2", "-o", "name"}), "line-1\n");
  ASSERT_EQ(jobs_.resumed.size(), 1);
  EXPECT_EQ(jobs_.resumed[0].resources().workers().min(), 4);
  EXPECT_EQ(jobs_.resumed[0].resources().workers().max(), 4);
  EXPECT_EQ(jobs_.resumed[0].resources().ps(), 2);

  jobs_.watched_state = v1::SUCCEEDED;
  EXPECT_EQ(Run({"scale", "line-1", "--workers", "4"}), "exit 6\n")
      << "it ended before it was suspended";
  EXPECT_EQ(Run({"scale", "line-1"}), "exit 2\n") << "no number is given";
  EXPECT_EQ(jobs_.resumed.size(), 1);
}

TEST_F(GoldenCommandsTest, ScaleBeyondTheFleetWarnsThatTheJobWillWait) {
  jobs_.spec = ParseJobFile(kJobFile, "line.yaml", {}).value();
  jobs_.spec->mutable_sync()->set_mode(v1::ALLREDUCE);
  jobs_.spec->mutable_resources()->set_ps(0);
  jobs_.watched_state = v1::SUSPENDED;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Run({"scale", "line-1", "--workers", "4", "-o", "name"}), "line-1\n");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("warning: line-1 needs 4 workers, and 1 is attached: it waits in the queue "
                        "until 3 more attach; start them, or scale line-1 to fewer\n"));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Run({"scale", "line-1", "--workers", "1", "-o", "name"}), "line-1\n");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("warning")));
}

TEST_F(GoldenCommandsTest, ScaleWarnsOfWorkersThatAreNoFaster) {
  jobs_.spec = ParseJobFile(kJobFile, "line.yaml", {}).value();
  jobs_.spec->mutable_resources()->mutable_workers()->set_max(2);
  jobs_.spec->mutable_resources()->mutable_workers()->set_logical(4);
  jobs_.watched_state = v1::SUSPENDED;
  const auto warnings = [this](const std::string& option, const std::string& value) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Run({"scale", "line-1", option, value, "-o", "name"}), "line-1\n");
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(warnings("--workers-max", "3"), HasSubstr("3 workers are no faster than 2"));
  EXPECT_THAT(warnings("--workers-max", "4"), Not(HasSubstr("no faster")));
  jobs_.spec->mutable_resources()->mutable_workers()->set_max(3);
  EXPECT_THAT(warnings("--ps", "2"), Not(HasSubstr("no faster"))) << "the job has this warning";
}

TEST_F(GoldenCommandsTest, AnInvalidScaleDoesNotSuspendTheJob) {
  jobs_.watched_state = v1::SUSPENDED;
  jobs_.spec = ParseJobFile(kJobFile, "line.yaml", {}).value();
  jobs_.spec->mutable_resources()->mutable_workers()->set_min(4);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Run({"scale", "line-1", "--workers-max", "2"}), "exit 2\n");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("resources.workers.max: must be at least min = 4 (is 2)"));
  EXPECT_EQ(Run({"scale", "line-1", "--ps", "1000000"}), "exit 2\n");
  EXPECT_EQ(Run({"scale", "line-9", "--ps", "2"}), "exit 3\n");
  EXPECT_THAT(jobs_.suspended, IsEmpty());
}

TEST_F(GoldenCommandsTest, AFailedScaleSaysHowToResumeTheSuspendedJob) {
  jobs_.watched_state = v1::SUSPENDED;
  jobs_.spec = ParseJobFile(kJobFile, "line.yaml", {}).value();
  jobs_.resume_end = ToGrpc(WithReason(absl::ResourceExhaustedError("no room"), "DISK_FULL"));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Run({"scale", "line-1", "--workers", "4"}), "exit 7\n");
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("muster: line-1 is suspended and does not continue by itself (muster resume line-1 "
                "--workers-min 4 --workers-max 4): no room [DISK_FULL]\n"));
}

TEST_F(GoldenCommandsTest, AScaleWhoseWatchFailsSaysThatTheJobIsBeingSuspended) {
  jobs_.watched_state = v1::RUNNING;
  jobs_.spec = ParseJobFile(kJobFile, "line.yaml", {}).value();
  jobs_.job_watch_end = ToGrpc(absl::PermissionDeniedError("it was revoked"));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Run({"scale", "line-1", "--ps", "2"}), "exit 5\n");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("line-1 is being suspended and does not continue by itself (muster resume "
                        "line-1 --ps 2): it was revoked"));
  EXPECT_THAT(jobs_.resumed, IsEmpty());
}

TEST_F(GoldenCommandsTest, KeysHaveTheOrderOfTheProto) {
  EXPECT_EQ(Run({"get", "line-2", "-o", "jsonpath={.waiting}"}),
            "{\"reason\":\"WAITS_FOR_WORKERS\",\"message\":\"needs 1 worker, 0 free of the 1 "
            "attached\",\"position\":1,\"queue_length\":1}\n");
  EXPECT_EQ(Run({"get", "line-1", "-o", "jsonpath={.conditions}"}),
            "[{\"type\":\"JOB_CONDITION_TYPE_RUNNING\",\"status\":true,"
            "\"last_transition_time\":\"2027-01-15T08:00:00Z\"}]\n");
  const std::string json = Run({"get", "line-1", "-o", "json"});
  size_t place = 0;
  for (const char* key : {"name", "number", "spec", "state", "reason"}) {
    const size_t next = json.find(absl::StrCat("\n \"", key, "\":"));
    EXPECT_NE(next, std::string::npos) << key << " in " << json;
    EXPECT_GE(next, place) << key;
    place = next;
  }
}

TEST_F(GoldenCommandsTest, Describe) {
  const std::string text = Run({"describe", "line-1"});
  for (const char* part : {"line-1", "SUCCEEDED", "120", "team=vision", "worker-0", "ps-0",
                           "waits for members", "steps 0 to 200"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("Logical workers")));
}

TEST_F(GoldenCommandsTest, DescribeSaysHowManyLogicalWorkersEachWorkerComputes) {
  jobs_.spec = Trained().spec();
  jobs_.spec->mutable_resources()->mutable_workers()->set_logical(8);
  EXPECT_THAT(Run({"describe", "line-1"}), ContainsRegex("Logical workers +8, on 1 worker: 8\n"));
}

constexpr char kEvents[] =
    "2027-01-15 08:00:00 UTC  QUEUED  SUBMITTED  waits for members\n"
    "2027-01-15 08:00:01 UTC  RUNNING  STARTED  steps 0 to 200\n";

TEST_F(GoldenCommandsTest, WatchPrintsEventsAndEndsWithTheJob) {
  EXPECT_EQ(Run({"watch", "line-1"}), kEvents);
  jobs_.watched_state = v1::FAILED;
  EXPECT_EQ(Run({"watch", "line-1"}), absl::StrCat(kEvents, "exit 1\n"));
}

// Makes standard error a terminal until Restore() is called.
class TerminalOnStandardError {
 public:
  TerminalOnStandardError() : before_(dup(STDERR_FILENO)) {
    const winsize size = {.ws_row = 40, .ws_col = 60, .ws_xpixel = 0, .ws_ypixel = 0};
    int terminal = -1;
    EXPECT_EQ(openpty(&master_, &terminal, nullptr, nullptr, &size), 0);
    dup2(terminal, STDERR_FILENO);
    close(terminal);
  }
  // Returns everything that was written to the terminal, and restores standard error.
  std::string Restore() {
    dup2(before_, STDERR_FILENO);
    close(before_);
    std::string text;
    char bytes[4096];
    for (ssize_t n; (n = read(master_, bytes, sizeof(bytes))) > 0;) text.append(bytes, n);
    close(master_);
    return text;
  }

 private:
  int before_;
  int master_ = -1;
};

TEST_F(GoldenCommandsTest, AnInterruptedWatchSaysThatTheJobContinues) {
  Interrupt::Registration registration(*process_interrupt, [] {});
  if (process_interrupt->signal() == 0) kill(getpid(), SIGINT);
  ASSERT_TRUE(process_interrupt->WaitFor(absl::Minutes(1)));
  for (const char* command : {"watch", "wait"}) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Run({command, "line-1"}, process_interrupt), "exit 130\n");
    EXPECT_THAT(
        ::testing::internal::GetCapturedStderr(),
        HasSubstr("line-1 continues without this command; muster watch line-1 shows it again "
                  "[INTERRUPTED]"));
  }
}

TEST_F(GoldenCommandsTest, WatchDrawsTheCurveOnATerminal) {
  TerminalOnStandardError terminal;
  Run({"watch", "line-1"});
  const std::string drawn = terminal.Restore();
  EXPECT_THAT(drawn, HasSubstr("       4 |****"));
  EXPECT_THAT(drawn, HasSubstr("       1 |"));
  EXPECT_THAT(drawn, HasSubstr("step 120/200"));
}

TEST_F(GoldenCommandsTest, Members) {
  EXPECT_EQ(Run({"members"}),
            "NAME      ROLE    HOST  PID  JOBS    SEEN  METRICS\n"
            "worker-0  worker  here  42   line-1  5h    http://127.0.0.1:9402/metrics\n");
  EXPECT_EQ(Run({"members", "-o", "name"}), "worker-0\n");
}

TEST_F(GoldenCommandsTest, MembersInPodsHaveAnAddressForPortForward) {
  fleet_.metrics_url = "http://muster-worker-0:9402/metrics";
  EXPECT_EQ(Run({"members"}),
            "NAME      ROLE    HOST  PID  JOBS    SEEN  METRICS\n"
            "worker-0  worker  here  42   line-1  5h    muster-worker-0:9402\n");
  EXPECT_EQ(Run({"members", "-o", "jsonpath={.members[0].metrics_url}"}),
            "http://muster-worker-0:9402/metrics\n");
}

TEST_F(GoldenCommandsTest, MembersNamesInsecureProcesses) {
  fleet_.insecure = true;
  EXPECT_EQ(Run({"members"}),
            "NAME      ROLE    HOST  PID  JOBS    SEEN  METRICS\n"
            "worker-0  worker  here  42   line-1  5h    http://127.0.0.1:9402/metrics\n"
            "--insecure: the coordinator, 1 of 1 members; any process that reaches a port may do "
            "everything\n");
}

TEST_F(GoldenCommandsTest, MembersDrain) {
  EXPECT_EQ(
      Run({"members", "drain", "worker-0"}),
      "worker-0 is asked to leave; muster members lists it until its jobs continue without it\n");
  EXPECT_EQ(Run({"members", "drain", "worker-0", "-o", "name"}), "worker-0\n");
  EXPECT_EQ(Run({"members", "drain", "worker-9"}), "exit 3\n");
}

TEST_F(GoldenCommandsTest, TokenCreatePrintsOnlyTheSecretOnStandardOutput) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Run({"token", "create", "ci", "--lifetime", "90d"}), "a-secret\n");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "t-4 for ci, scope submit, until 2096-10-02 07:06:40 UTC. It is shown only once; put "
            "it into a file that only its holder can read, for --token-file.\n");
  EXPECT_EQ(access_.created.holder(), "ci");
  EXPECT_EQ(access_.created.scope(), v1::TOKEN_SUBMIT);
  EXPECT_EQ(access_.created.lifetime_seconds(), 90 * 24 * 3600);
  EXPECT_EQ(Run({"token", "create", "ci", "--scope", "read", "-o", "name"}), "t-4\n");
  EXPECT_EQ(access_.created.scope(), v1::TOKEN_READ);
  EXPECT_EQ(Run({"token", "create", "ci", "--lifetime", "long"}), "exit 2\n");
}

TEST_F(GoldenCommandsTest, TokenListAndRevoke) {
  EXPECT_EQ(Run({"token", "list"}),
            "ID   HOLDER  SCOPE  CREATED                  ENDS                     STATE\n"
            "t-3  ci      read   2001-09-09 01:46:40 UTC  2096-10-02 07:06:40 UTC  valid\n"
            "t-2  ann     read   2001-09-09 01:46:40 UTC  2096-10-02 07:06:40 UTC  revoked\n"
            "t-1  ann     read   2001-09-09 01:46:40 UTC  2001-09-09 01:47:40 UTC  ended\n");
  EXPECT_EQ(Run({"token", "list", "-o", "name"}), "t-3\nt-2\nt-1\n");
  EXPECT_EQ(Run({"token", "revoke", "t-3"}), "t-3 of ci is revoked\n");
  EXPECT_EQ(Run({"token", "revoke", "t-9"}), "exit 3\n");
}

TEST_F(GoldenCommandsTest, CertsShow) {
  const std::string home = absl::StrCat(::testing::TempDir(), "/ca-", getpid());
  ASSERT_EQ(Run({"certs", "init", "--dir", home, "--name", "here"}), home + "\n");
  ASSERT_EQ(Run({"certs", "issue", "coordinator", "--ca", home, "--host", "muster.example.org",
                 "--host", "10.0.0.7"}),
            home + "/coordinator\n");
  const std::string folder = home + "/coordinator";
  const std::string time = "[0-9]+-[0-9]+-[0-9]+ [0-9]+:[0-9]+:[0-9]+ UTC";
  EXPECT_THAT(Run({"certs", "show", folder}),
              MatchesRegex(absl::StrCat("File:     ", folder, "/tls.crt\nIdentity: coordinator\n",
                                        "Hosts:    muster.example.org, 10.0.0.7\nBegins:   ", time,
                                        "\nEnds:     ", time, " \\(in 89d\\)\nIssuer:   here\n",
                                        "SHA-256:  [0-9a-f]+\n")));
  EXPECT_EQ(Run({"certs", "show", folder, "-o", "name"}), "coordinator\n");
  EXPECT_EQ(Run({"certs", "show", home, "-o", "name"}), "an authority\n");
  EXPECT_EQ(Run({"certs", "show", home + "/nobody"}), "exit 3\n");
}

TEST_F(GoldenCommandsTest, CheckpointList) {
  EXPECT_EQ(Run({"checkpoint", "list", "line-1"}),
            "JOB     STEP  SIZE     AGE  DIRECTORY\n"
            "line-1  100   2.0 KiB  5h   /state/100\n");
  EXPECT_EQ(Run({"checkpoint", "list", "line-1", "-o", "name"}), "line-1@100\n");
}

TEST_F(GoldenCommandsTest, CheckpointSave) {
  EXPECT_EQ(Run({"checkpoint", "save", "line-1"}),
            "JOB     STEP  SIZE     AGE  DIRECTORY\n"
            "line-1  100   2.0 KiB  5h   /state/100\n");
  EXPECT_EQ(Run({"checkpoint", "save", "line-1", "-o", "name"}), "line-1@100\n");
  EXPECT_EQ(Run({"checkpoint", "save", "line-9"}), "exit 3\n");
}

TEST_F(GoldenCommandsTest, Events) {
  EXPECT_EQ(Run({"events"}),
            "TIME                     JOB     STATE    REASON     MESSAGE\n"
            "2027-01-15 08:00:00 UTC  line-1  QUEUED   SUBMITTED  waits for members\n"
            "2027-01-15 08:00:01 UTC  line-1  RUNNING  STARTED    steps 0 to 200\n")
      << "not sorted by time";
  EXPECT_EQ(Run({"events", "line-1", "--limit", "1", "-o", "yaml"}),
            "events:\n"
            "  - revision: 2\n"
            "    time: 2027-01-15T08:00:01Z\n"
            "    state: RUNNING\n"
            "    reason: STARTED\n"
            "    message: steps 0 to 200\n"
            "    job: line-1\n");
}

TEST_F(GoldenCommandsTest, CheckpointEventsAreFoldedForPeople) {
  jobs_.checkpoints = 3;
  const std::string last =
      "2027-01-15 08:01:42 UTC  line-1  RUNNING  CHECKPOINT_COMMITTED  line-1@30; 2 checkpoints "
      "before it\n";
  EXPECT_THAT(Run({"events"}), ::testing::EndsWith(last));
  EXPECT_THAT(Run({"events", "line-1"}), Not(HasSubstr("line-1@20")));
  EXPECT_EQ(Run({"events", "line-1", "-o", "jsonpath={.events[*].message}"}),
            "waits for members steps 0 to 200 line-1@10 line-1@20 line-1@30\n");
  EXPECT_EQ(Run({"watch", "line-1"}),
            absl::StrCat(kEvents,
                         "2027-01-15 08:01:42 UTC  RUNNING  CHECKPOINT_COMMITTED  line-1@30; 2 "
                         "checkpoints before it\n"));
  EXPECT_THAT(Run({"describe", "line-1"}), HasSubstr("line-1@30; 2 checkpoints before it\n"));
}

TEST_F(GoldenCommandsTest, WatchesEvents) {
  const std::string before = Run({"events"});
  EXPECT_EQ(Run({"events", "line-1", "-w"}), before) << "the watch ends with the job";
  EXPECT_EQ(
      Run({"events", "-w"}),
      absl::StrCat(before,
                   "2027-01-15 08:03:20 UTC  line-1  SUCCEEDED  COMPLETED  trained 200 steps\n"))
      << "new events of each job come once";
}

TEST_F(GoldenCommandsTest, FollowingLogsEndsWithAPermanentError) {
  EXPECT_EQ(Run({"logs", "--member", "worker-0", "--member", "ps-0", "-f", "--lines", "1"}),
            "worker-0 | worker-0 three\nps-0 | ps-0 three\n"
            "worker-0 | four\nps-0 | new process\nexit 5\n");
}

TEST_F(GoldenCommandsTest, Logs) {
  const std::string own = absl::StrCat(kLogPrefix, "line-1: two\nworker-0 three\n");
  EXPECT_EQ(Run({"logs", "--member", "worker-0", "--lines", "2"}), own);
  EXPECT_EQ(Run({"logs", "line-1", "--member", "worker-0"}), absl::StrCat("one\n", own))
      << "lines of line-2 were not dropped";
  EXPECT_EQ(Run({"logs", "line-1", "--lines", "1"}),
            "ps-0 | ps-0 three\nworker-0 | worker-0 three\n");
  EXPECT_EQ(Run({"logs", "line-1", "--member", "worker-7"}), "exit 3\n");
}

TEST_F(GoldenCommandsTest, Metrics) {
  EXPECT_EQ(Run({"metrics", "line-1", "--csv"}),
            "step,loss,evaluation_loss\n0,4,\n1,3,\n2,2,2.5\n3,1,\n");
  const std::string text = Run({"metrics", "line-1"});
  EXPECT_THAT(text, HasSubstr("       4 |****"));
  EXPECT_THAT(text, HasSubstr("SERIES           FIRST  LAST  MIN  MAX  LAST STEP\n"
                              "loss             4      1     1    4    3\n"
                              "evaluation_loss  2.5    2.5   2.5  2.5  2\n"));
  const std::string folder = ::testing::TempDir() + "/runs";
  EXPECT_EQ(Run({"metrics", "line-1", "--tensorboard", folder}),
            folder + "/events.out.tfevents.1800000000.line-1\n");
  std::ifstream file(folder + "/events.out.tfevents.1800000000.line-1", std::ios::binary);
  const std::string events((std::istreambuf_iterator<char>(file)), {});
  for (int step = 0; step < 4; ++step) {
    const double time = 1'800'000'100.5 + step;
    EXPECT_THAT(events, HasSubstr(std::string(reinterpret_cast<const char*>(&time), sizeof(time))))
        << "the event does not have the time of its step";
  }
}

TEST_F(GoldenCommandsTest, Top) {
  EXPECT_EQ(
      Run({"top", "line-1", "--once"}),
      "WORKER    STEPS  STEP ms  DATA ms  COMPUTE ms  WAIT ms  SENT/STEP  RECEIVED/STEP  "
      "SAMPLES/S\n"
      "worker-0  10     100.0    0.0      90.0        10.0     0 B        0 B            80\n"
      "compute-bound: worker-0 computes 90 % of a step (0.0 data + 90.0 compute + 10.0 wait = "
      "100.0 ms a step). More workers, a faster device or a lower precision help\n");
}

TEST_F(GoldenCommandsTest, Links) {
  EXPECT_EQ(Run({"links", "line-1"}),
            "WORKER    PEER    TRANSPORT  SECURITY  SENT     RECEIVED\n"
            "worker-0  ps-0/0  tcp        auth      3.0 MiB  5.0 KiB\n"
            "fell back to tcp (one host, but another network namespace):\n"
            "  worker-0 to ps-0/0\n");
  EXPECT_THAT(Run({"links", "line-1", "-o", "wide"}),
              HasSubstr("5.0 KiB   tcp      eth0    one host, but another network "
                        "namespace\n"));
  EXPECT_EQ(Run({"links", "line-1", "-o", "yaml"}),
            "members:\n"
            "  - member: worker-0\n"
            "    links:\n"
            "      - peer: ps-0/0\n"
            "        transport: tcp\n"
            "        security: auth\n"
            "        network: tcp\n"
            "        device: eth0\n"
            "        fallback: one host, but another network namespace\n"
            "        sent_bytes: 3145728\n"
            "        received_bytes: 5120\n");
  EXPECT_EQ(Run({"links", "line-1", "-o", "name"}), "line-1\n");
  EXPECT_EQ(Run({"links", "line-9"}), "exit 3\n");
}

TEST_F(GoldenCommandsTest, Update) {
  EXPECT_EQ(Run({"update", "line-1", "--priority", "5", "--label", "team-", "--label", "tier=1",
                 "-o", "name"}),
            "line-1\n");
  EXPECT_EQ(jobs_.update.name(), "jobs/line-1");
  EXPECT_EQ(jobs_.update.spec().priority(), 5);
  EXPECT_EQ(jobs_.update.revision(), 4) << "the revision of the edited labels";
  EXPECT_THAT(jobs_.update.update_mask().paths(), ::testing::ElementsAre("priority", "labels"));
  ASSERT_EQ(jobs_.update.spec().labels().size(), 1);
  EXPECT_EQ(jobs_.update.spec().labels().at("tier"), "1");
}

TEST_F(GoldenCommandsTest, CloneAndRetry) {
  EXPECT_EQ(Run({"clone", "line-1", "--set", "priority=3", "-o", "name"}), "line-2\n");
  EXPECT_EQ(jobs_.created.name(), "line");
  EXPECT_EQ(jobs_.created.priority(), 3);
  EXPECT_EQ(Run({"clone", "line-1", "--print"}), "name: line\nlabels:\n  team: vision\n");
  EXPECT_EQ(Run({"retry", "line-1"}), "exit 6\n") << "it still runs";
  EXPECT_EQ(Run({"retry", "line-3", "--set", "priority=3", "-o", "name"}), "line-2\n");
  EXPECT_EQ(jobs_.created.priority(), 3);
  EXPECT_EQ(jobs_.created.checkpoint().resume_from(), "line-3");
  EXPECT_EQ(Run({"retry", "line-3", "--print"}),
            "name: line\ncheckpoint:\n  resume_from: line-3\nlabels:\n  team: vision\n");
  EXPECT_EQ(Run({"clone", "line-3", "--print"}), "name: line\nlabels:\n  team: vision\n")
      << "a clone does not resume";
}

TEST_F(GoldenCommandsTest, RetryOfSeveralJobsPrintsTheNewOnes) {
  EXPECT_EQ(Run({"retry", "line-3", "line-9", "-o", "name"}), "line-2\nexit 3\n");
  EXPECT_EQ(Run({"retry", "line-1", "line-3", "-o", "name"}), "line-2\nexit 6\n")
      << "the first has not ended";
  EXPECT_EQ(Run({"clone", "line-9", "line-3", "-o", "name"}), "line-2\nexit 3\n");
  EXPECT_EQ(Run({"clone", "line-9", "line-3", "--print"}),
            "name: line\nlabels:\n  team: vision\nexit 3\n");
}

TEST_F(GoldenCommandsTest, RetryOfAJobWithoutACheckpointStartsWhereItStarted) {
  jobs_.ended_checkpoint = "";
  jobs_.spec.emplace().set_name("line");
  jobs_.spec->mutable_checkpoint()->set_resume_from("older-1@700");
  EXPECT_EQ(Run({"retry", "line-3", "--print"}),
            "name: line\ncheckpoint:\n  resume_from: \"older-1@700\"\n");
  EXPECT_THAT(Run({"clone", "line-3", "--print"}), Not(HasSubstr("resume_from")));
  jobs_.ended_checkpoint = "jobs/line-3/checkpoints/100";
  EXPECT_EQ(Run({"retry", "line-3", "--print"}),
            "name: line\ncheckpoint:\n  resume_from: line-3\n");
}

TEST_F(GoldenCommandsTest, CheckpointDelete) {
  EXPECT_EQ(Run({"checkpoint", "delete", "line-1@2"}), "");
  EXPECT_EQ(Run({"checkpoint", "delete", "line-1@4"}), "exit 6\n");
}

TEST_F(GoldenCommandsTest, AnInterruptedDownloadLeavesNothing) {
  std::string folder = ::testing::TempDir() + "/interrupted-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  setenv("TMPDIR", folder.c_str(), 1);
  EXPECT_EQ(Run({"checkpoint", "verify", "line-1@100"}, process_interrupt), "exit 130\n");
  unsetenv("TMPDIR");
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST_F(GoldenCommandsTest, TheCurrentContextAppliesUnlessAServerIsNamed) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Run({"context", "list"}), "  NAME  SERVER  TLS  TOKEN FILE\n");
  EXPECT_EQ(Run({"context", "add", "here"}), "here\n");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "no contexts; `muster context add NAME --server HOST:PORT` adds one\n"
            "to use it by default: muster context use here\n");
  EXPECT_THAT(Run({"context", "list"}), HasSubstr(absl::StrCat("\n  here  ", address(), " ")));

  EXPECT_EQ(RunAnywhere({"context", "use", "here"}), "here is in use\n");
  EXPECT_THAT(Run({"context", "list"}), HasSubstr("\n*  here  "));

  EXPECT_EQ(RunAnywhere({"list", "-o", "name"}), "line-2\nline-1\n");
  EXPECT_EQ(RunAnywhere({"list", "-o", "name", "--server", "127.0.0.1:1"}), "exit 7\n");
}

TEST_F(GoldenCommandsTest, AnEmptyResultNamesTheCoordinator) {
  ASSERT_EQ(Run({"context", "add", "prod"}), "prod\n");
  const std::string where = absl::StrCat(address(), " (context prod)");
  jobs_.is_empty = true;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(RunAnywhere({"list", "--context", "prod"}),
            "NAME  STATE  STEP  LOSS  WORKERS  PS  AGE\n");
  EXPECT_EQ(RunAnywhere({"list", "--context", "prod", "--state", "failed"}),
            "NAME  STATE  STEP  LOSS  WORKERS  PS  AGE\n");
  EXPECT_EQ(RunAnywhere({"list", "--context", "prod", "-o", "name"}), "");
  EXPECT_EQ(RunAnywhere({"get", "line-9", "--context", "prod"}), "exit 3\n");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            absl::StrCat("no jobs at ", where, "\nno matching jobs at ", where, "\nmuster: ", where,
                         ": no job 'line-9' [JOB_NOT_FOUND]\n"));
}

}  // namespace
}  // namespace muster::cli::golden_commands_test
