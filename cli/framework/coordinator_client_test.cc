#include "cli/framework/coordinator_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <stop_token>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "lib/http/http_server.h"
#include "lib/transport/core/crc32c.h"

namespace muster::cli::coordinator_client_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Creates the job, but fails the first `breaks` calls with `code`.
class BreakingJobs final : public v1::JobService::Service {
 public:
  grpc::Status CreateJob(grpc::ServerContext*, const v1::CreateJobRequest* request,
                         v1::Job* response) override {
    request_ids.push_back(request->request_id());
    if (std::ssize(request_ids) <= breaks) return {code, "broken"};
    response->set_name("jobs/line-1");
    return grpc::Status::OK;
  }

  // Sends one state of the job, then nothing more.
  grpc::Status WatchJob(grpc::ServerContext*, const v1::WatchJobRequest*,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) override {
    v1::WatchJobResponse running;
    running.mutable_job()->set_state(v1::RUNNING);
    writer->Write(running);
    gone.WaitForNotification();
    return grpc::Status::OK;
  }

  int breaks = 0;
  grpc::StatusCode code = grpc::StatusCode::UNAVAILABLE;
  std::vector<std::string> request_ids;
  absl::Notification gone;
};

// Sends the first byte of a file and then nothing more if `stuck`, else the whole file.
class OneFileCheckpoints final : public v1::CheckpointService::Service {
 public:
  grpc::Status ReadCheckpoint(grpc::ServerContext*, const v1::ReadCheckpointRequest*,
                              grpc::ServerWriter<v1::ReadCheckpointResponse>* writer) override {
    v1::ReadCheckpointResponse part;
    part.set_file("manifest.json");
    part.set_data("{");
    part.set_file_bytes(stuck ? 100 : 1);
    part.set_crc32c(Crc32c(absl::MakeConstSpan(reinterpret_cast<const std::byte*>("{"), 1)));
    writer->Write(part);
    if (stuck) cancelled.WaitForNotification();
    return grpc::Status::OK;
  }

  bool stuck = true;
  absl::Notification cancelled;
};

class CoordinatorClientTest : public ::testing::Test {
 protected:
  CoordinatorClientTest() { Serve("127.0.0.1:0"); }
  ~CoordinatorClientTest() override {
    if (!checkpoints_.cancelled.HasBeenNotified()) checkpoints_.cancelled.Notify();
    jobs_.gone.Notify();
  }
  void Serve(const std::string& at) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(at, grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&jobs_);
    builder.RegisterService(&checkpoints_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr) << at;
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  BreakingJobs jobs_;
  OneFileCheckpoints checkpoints_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(CoordinatorClientTest, ARetriedCreateKeepsItsRequestId) {
  jobs_.breaks = 2;
  CoordinatorClient client(address());

  const auto job = client.CreateJob({});

  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_EQ(jobs_.request_ids.size(), 3);
  EXPECT_EQ(jobs_.request_ids[0].size(), 32);
  EXPECT_EQ(jobs_.request_ids[0], jobs_.request_ids[1]);
  EXPECT_EQ(jobs_.request_ids[0], jobs_.request_ids[2]);
  ASSERT_TRUE(client.CreateJob({}).ok());
  EXPECT_NE(jobs_.request_ids[3], jobs_.request_ids[0]) << "another call needs another id";
}

TEST_F(CoordinatorClientTest, KeepsARequestIdOfTheCaller) {
  v1::CreateJobRequest request;
  request.set_request_id("mine");
  CoordinatorClient client(address());
  ASSERT_TRUE(client.CreateJob(request).ok());
  EXPECT_THAT(jobs_.request_ids, ::testing::ElementsAre("mine"));
}

TEST_F(CoordinatorClientTest, AnErrorNamesTheCoordinatorThatIsAway) {
  jobs_.breaks = 100;
  CoordinatorClient client(address());
  const auto job = client.CreateJob({});
  EXPECT_TRUE(absl::IsUnavailable(job.status()));
  EXPECT_THAT(std::string(job.status().message()), HasSubstr(address()));
}

TEST_F(CoordinatorClientTest, ACreateWithAwayMaxRetriesMoreThanThreeTimes) {
  jobs_.breaks = 3;
  int outages = 0;
  CoordinatorClient client(address());

  const auto job = client.CreateJob(
      {}, {.away_max = absl::Minutes(5), .on_outage = [&](const absl::Status&) { ++outages; }});

  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_EQ(jobs_.request_ids.size(), 4);
  EXPECT_THAT(jobs_.request_ids, ::testing::Each(jobs_.request_ids[0]));
  EXPECT_EQ(outages, 1);
}

TEST_F(CoordinatorClientTest, ARefusedRequestIsNotRetried) {
  jobs_.breaks = 100;
  jobs_.code = grpc::StatusCode::INVALID_ARGUMENT;
  CoordinatorClient client(address());

  const auto job = client.CreateJob({}, {.away_max = absl::Minutes(5)});

  EXPECT_TRUE(absl::IsInvalidArgument(job.status())) << job.status();
  EXPECT_EQ(jobs_.request_ids.size(), 1);
}

TEST_F(CoordinatorClientTest, WaitsForACoordinatorThatListensLater) {
  server_->Shutdown();
  CoordinatorClient client(address());

  const auto job = client.CreateJob(
      {}, {.away_max = absl::Minutes(5), .on_outage = [&](const absl::Status& refused) {
             EXPECT_THAT(std::string(refused.message()), HasSubstr("refused"));
             Serve(address());
           }});

  EXPECT_TRUE(job.ok()) << job.status();
}

// The name is not valid in DNS, so no name server is queried.
TEST_F(CoordinatorClientTest, WaitsForANameThatDoesNotResolve) {
  absl::Status outage;
  CoordinatorClient client("coordinator..fleet:7070");

  const auto job =
      client.CreateJob({}, {.away_max = absl::Seconds(1),
                            .on_outage = [&](const absl::Status& status) { outage = status; }});

  EXPECT_TRUE(absl::IsUnavailable(job.status())) << job.status();
  EXPECT_THAT(std::string(outage.message()), HasSubstr("coordinator..fleet"));
}

TEST(CoordinatorClientPortTest, AnErrorRecognizesThePortOfAStatusPage) {
  const auto page = HttpServer::Start(
      {.address = "127.0.0.1:0"}, [](const HttpRequest&) { return HttpResponse{.body = "{}"}; });
  ASSERT_TRUE(page.ok()) << page.status();
  const std::string address = "127.0.0.1:" + std::to_string((*page)->port());

  const absl::Status status = CoordinatorClient(address).GetServerInfo().status();

  EXPECT_TRUE(absl::IsInvalidArgument(status)) << "a retry does not help: " << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(address + " is the port of a status page or of metrics"));
}

TEST_F(CoordinatorClientTest, AStopEndsAnIdleWatch) {
  CoordinatorClient client(address());
  std::stop_source stop;
  std::jthread other;

  const absl::Status status =
      client.Watch("line-1", {.stop = stop.get_token()}, [&](const v1::WatchJobResponse& update) {
        EXPECT_EQ(update.job().state(), v1::RUNNING);
        other = std::jthread([&stop] { stop.request_stop(); });
        return CoordinatorClient::WatchStep::kContinue;
      });

  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST_F(CoordinatorClientTest, AStuckDownloadFailsAndLeavesNothing) {
  std::string folder = ::testing::TempDir() + "/download-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  CoordinatorClient client(address(), "", absl::Milliseconds(20));

  const absl::Status status = client.DownloadCheckpoint("jobs/a/checkpoints/1", folder + "/to");

  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no data from"));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST_F(CoordinatorClientTest, DownloadsIntoAFolderWithTrailingSlashes) {
  std::string folder = ::testing::TempDir() + "/slashes-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  checkpoints_.stuck = false;
  CoordinatorClient client(address());

  const absl::Status status = client.DownloadCheckpoint("jobs/a/checkpoints/1", folder + "/to//");

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(std::filesystem::exists(folder + "/to/manifest.json"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1)
      << "nothing else is left";
  EXPECT_TRUE(absl::IsAlreadyExists(client.DownloadCheckpoint("jobs/a/checkpoints/1", "/")));
}

}  // namespace
}  // namespace muster::cli::coordinator_client_test
