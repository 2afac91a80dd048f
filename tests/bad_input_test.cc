// Bad input gets one clear error and leaves nothing behind; hostile bytes kill no process.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "gtest/gtest.h"
#include "lib/status/field_fault.h"
#include "lib/status/grpc_status.h"
#include "tests/listeners.h"
#include "tests/training_cluster.h"

namespace muster::bad_input_test {
namespace {

using ::testing::HasSubstr;

constexpr char kGoodJob[] = R"(
name: good
model: {zoo: {name: linear}}
data: {linear: {slope: 3, intercept: 1, samples: 64}, batch_size: 8}
training: {steps: 20, optimizer: {sgd: {learning_rate: 0.1}}}
resources: {workers: {min: 1}, ps: 1}
)";

int64_t JobCount(TrainingCluster& cluster) {
  grpc::ClientContext context;
  v1::ListJobsResponse response;
  EXPECT_TRUE(cluster.jobs().ListJobs(&context, {}, &response).ok());
  return response.jobs_size();
}

TEST(BadInputTest, EveryFaultyJobFileIsRefusedAndLeavesNothingBehind) {
  TrainingCluster cluster(
      {.ps = 1, .workers = 1, .ps_threads = 1, .coordinator_flags = {"--data_visible=true"}});
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/faulty_jobs")) {
    if (entry.path().extension() != ".yaml") continue;
    ++files;
    SCOPED_TRACE(entry.path().filename());
    std::ifstream file(entry.path());
    const std::string yaml((std::istreambuf_iterator<char>(file)), {});
    // First line: "# expect: <field path>: <part of the message>".
    const std::vector<std::string> expected =
        absl::StrSplit(yaml.substr(0, yaml.find('\n')), absl::MaxSplits(": ", 2));
    ASSERT_EQ(expected.size(), 3) << "no '# expect: field: message' line";

    const absl::Status status = cluster.SubmitError(yaml);

    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(expected[1]));
    EXPECT_THAT(std::string(status.message()), HasSubstr(expected[2]));
  }
  EXPECT_GE(files, 200);
  EXPECT_EQ(JobCount(cluster), 0);
  for (const auto& entry : std::filesystem::directory_iterator(cluster.state_dir() + "/jobs")) {
    EXPECT_EQ(entry.path().filename(), "folder.id") << "no job has left anything";
  }
  cluster.Run(kGoodJob);
}

TEST(BadInputTest, DataThatOnlyTheWorkerSeesFailsTheJobWithTheFieldPath) {
  TrainingCluster cluster(
      {.ps = 1, .workers = 1, .ps_threads = 1, .coordinator_flags = {"--data_visible=false"}});
  const std::string job = cluster.Submit(R"(
name: nodata
model: {zoo: {name: gpt, args: {layers: 1, heads: 1, channels: 8, context: 8}}}
data: {text: {path: /no/such/folder}, batch_size: 2}
training: {steps: 3, optimizer: {sgd: {learning_rate: 0.1}}}
)");

  const v1::Job failed = cluster.AwaitState(job, v1::FAILED, absl::Seconds(30));

  EXPECT_EQ(failed.reason(), "DATA_NOT_FOUND");
  EXPECT_THAT(failed.message(), HasSubstr("data.text.path"));
  EXPECT_THAT(failed.message(), HasSubstr("worker-0"));
}

TEST(BadInputTest, AllFaultsOfARequestComeAtOnceWithTheirFields) {
  TrainingCluster cluster({.ps = 1, .workers = 1, .ps_threads = 1});
  v1::CreateJobRequest request;
  v1::Job answer;
  request.mutable_spec()->set_name("Bad Name");
  request.mutable_spec()->mutable_data()->set_batch_size(-1);
  grpc::ClientContext context;

  const absl::Status status = FromGrpc(cluster.jobs().CreateJob(&context, request, &answer));

  EXPECT_TRUE(absl::IsInvalidArgument(status));
  std::set<std::string> fields;
  for (const FieldFault& fault : FaultsOf(status)) fields.insert(fault.field);
  for (const char* field : {"name", "data.batch_size", "model", "training.optimizer"}) {
    EXPECT_TRUE(std::any_of(fields.begin(), fields.end(), [&](const std::string& path) {
      return absl::StartsWith(path, field);
    })) << field;
  }
}

TEST(BadInputTest, GarbageAtEveryPortKillsNothingAndTrainingGoesOn) {
  TrainingCluster cluster({.ps = 1, .workers = 1, .ps_threads = 1});
  const std::string job = cluster.Submit(R"(
name: attacked
model: {zoo: {name: gpt, args: {layers: 1, heads: 2, channels: 32, context: 32}}}
data: {text: {path: examples/data/licences}, batch_size: 8}
training: {steps: 1000000, optimizer: {sgd: {learning_rate: 0.1}}}
)");
  cluster.AwaitStep(job, 5);
  constexpr uint64_t kSeed = 20261121;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937_64 random(kSeed);
  std::map<std::string, pid_t> pids;
  for (const std::string& name : cluster.members().names()) {
    SCOPED_TRACE(name);
    pids[name] = cluster.members().pid(name);
    const std::vector<sockaddr_in> listeners = Listeners(pids[name]);
    EXPECT_GE(listeners.size(), 2) << "metrics, and gRPC or the job's data";
    for (const sockaddr_in& listener : listeners) {
      for (size_t size : {1, 8, 64, 1000, 100'000, 5'000'000}) {
        std::string bytes(size, 0);
        for (char& byte : bytes) byte = static_cast<char>(random());
        EXPECT_TRUE(SendBytes(listener, bytes));
        EXPECT_TRUE(SendBytes(listener, std::string(size, '\xff')));
        EXPECT_TRUE(SendBytes(listener, std::string(size, '\0')));
      }
    }
  }

  // Awaits two reports with a new step, because the first may have been sent before the last
  // attack.
  for (int report = 0; report < 2; ++report) {
    cluster.AwaitStep(job, cluster.Get(job).progress().step() + 1);
  }
  grpc::ClientContext context;
  v1::CancelJobRequest cancel;
  v1::Job cancelled;
  cancel.set_name(job);
  EXPECT_TRUE(cluster.jobs().CancelJob(&context, cancel, &cancelled).ok());
  EXPECT_EQ(cancelled.state(), v1::CANCELLED);
  cluster.Run(kGoodJob);
  for (const auto& [name, pid] : pids) EXPECT_EQ(cluster.members().pid(name), pid) << name;
}

TEST(BadInputTest, TheCoordinatorRefusesOversizedRequests) {
  TrainingCluster cluster({.ps = 1, .workers = 1, .ps_threads = 1});
  grpc::ChannelArguments arguments;
  arguments.SetMaxSendMessageSize(-1);  // no limit; Muster's own clients would refuse to send it
  auto stub = v1::JobService::NewStub(grpc::CreateCustomChannel(
      cluster.members().address(), grpc::InsecureChannelCredentials(), arguments));
  v1::CreateJobRequest request;
  v1::Job answer;
  request.mutable_spec()->set_name(std::string(100 << 20, 'a'));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));

  const absl::Status status = FromGrpc(stub->CreateJob(&context, request, &answer));

  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("Received message larger than max"));
  EXPECT_EQ(JobCount(cluster), 0);
  cluster.Run(kGoodJob);
}

}  // namespace
}  // namespace muster::bad_input_test
