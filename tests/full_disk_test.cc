// The disk of the coordinator's state folder fills up during a job. The job reports this, loses
// nothing and continues when there is space.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "tests/metrics_page.h"
#include "tests/training_cluster.h"

namespace muster::full_disk_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kSteps = 1500;  // a few seconds

std::string Job() {
  return R"(
name: net
model: {zoo: {name: gpt, args: {layers: 2, heads: 2, channels: 64, context: 32}}}
data: {text: {path: examples/data/licences}, batch_size: 8, seed: 1}
training: {steps: )" +
         std::to_string(kSteps) + R"(, optimizer: {adam: {learning_rate: 1e-3}}, seed: 9}
resources: {workers: {min: 2, max: 2}, ps: 1}
checkpoint: {every_steps: 100, keep_last: 0}
)";
}

// A cluster whose disk the test can fill.
class FullDiskTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string library = std::string(getenv("TEST_SRCDIR")) + "/" +
                                getenv("TEST_WORKSPACE") + "/tests/libfull_disk.so";
    ASSERT_EQ(access(library.c_str(), R_OK), 0) << library;
    setenv("MUSTER_TEST_FULL_DISK", Flag().c_str(), 1);
    setenv("LD_PRELOAD", library.c_str(), 1);
    cluster_ = new TrainingCluster({.ps = 1, .workers = 2, .ps_threads = 1});
    unsetenv("LD_PRELOAD");
    undisturbed_ = cluster_->Run(Job());
  }
  static void TearDownTestSuite() { delete cluster_; }

  static std::string Flag() { return ::testing::TempDir() + "/full"; }
  static void Fill() { std::ofstream(Flag()).close(); }
  static void MakeRoom() { ASSERT_EQ(unlink(Flag().c_str()), 0); }

  // Returns the messages of a finished job's events with this reason.
  static std::vector<std::string> MessagesOfEvents(const std::string& job,
                                                   const std::string& reason) {
    grpc::ClientContext context;
    v1::WatchJobRequest request;
    request.set_name(job);
    auto stream = cluster_->jobs().WatchJob(&context, request);
    std::vector<std::string> messages;
    for (v1::WatchJobResponse response; stream->Read(&response);) {
      for (const v1::JobEvent& event : response.events()) {
        if (event.reason() == reason) messages.push_back(event.message());
      }
    }
    return messages;
  }

  static void ExpectTheSameEnd(const std::string& job) {
    cluster_->AwaitState(job, v1::SUCCEEDED);
    EXPECT_EQ(cluster_->Metrics(job), cluster_->Metrics(undisturbed_));
    EXPECT_EQ(cluster_->Hashes(job, kSteps), cluster_->Hashes(undisturbed_, kSteps));
  }

  static TrainingCluster* cluster_;
  static std::string undisturbed_;
};
TrainingCluster* FullDiskTest::cluster_ = nullptr;
std::string FullDiskTest::undisturbed_;

TEST_F(FullDiskTest, AJobWaitsForRoomAndLosesNothing) {
  const std::string job = cluster_->Submit(Job());
  cluster_->AwaitStep(job, 20);

  Fill();
  const v1::Job stuck = cluster_->Await(job, [](const v1::Job& now) {
    return absl::StrContains(now.trouble().message(), "cannot write to its state folder");
  });
  EXPECT_EQ(stuck.state(), v1::RUNNING);
  EXPECT_THAT(stuck.trouble().message(), HasSubstr("continues when there is space"));

  MakeRoom();
  ExpectTheSameEnd(job);
  EXPECT_FALSE(cluster_->Get(job).has_trouble());
}

TEST_F(FullDiskTest, ASaveThatIsRefusedDoesNotHurtTheLastOneAndTheNextOneIsMade) {
  const std::string job = cluster_->Submit(Job());
  const std::string folder = cluster_->checkpoint_directory(job);
  cluster_->Await(job, [](const v1::Job& now) { return !now.checkpoint().empty(); });

  Fill();
  const std::string url = MetricsUrls(*cluster_).at("coordinator");
  const std::string failures = absl::StrCat("muster_job_checkpoint_failures_total{job=\"", job,
                                            "\",reason=\"STORAGE_FULL\"} ");
  cluster_->Await(job, [&](const v1::Job&) {
    const std::string page = ScrapeMetrics(url);
    return absl::StrContains(page, failures) && !absl::StrContains(page, failures + "0\n");
  });
  const std::vector<int64_t> saved = *ListCheckpointSteps(folder);
  ASSERT_FALSE(saved.empty());
  EXPECT_LT(saved.back(), kSteps - 100) << "too late for this test to show anything";
  for (const int64_t step : saved) {
    EXPECT_EQ(cluster_->Hashes(job, step), cluster_->Hashes(undisturbed_, step)) << step;
  }

  MakeRoom();
  ExpectTheSameEnd(job);
  EXPECT_THAT(MessagesOfEvents(job, "CHECKPOINT_FAILED"),
              ElementsAre(HasSubstr("no space left on device")));
  const std::vector<int64_t> after = *ListCheckpointSteps(folder);
  EXPECT_LT(saved.back(), after[after.size() - 2]) << "the last one is not periodic";
}

}  // namespace
}  // namespace muster::full_disk_test
