// Takes over what older versions wrote: state folders, backups and the content of etcd.
// tests/goldens/state_*/README.md says how they were made.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/third_party/etcd/rpc.grpc.pb.h"
#include "services/coordinator/testing/etcd_server.h"
#include "tests/training_cluster.h"

namespace muster::old_state_test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;

// The jobs that the old programs left, in their order.
constexpr char kFinished[] = "finished-1";
constexpr char kSuspended[] = "suspended-2";
constexpr char kQueued[] = "queued-3";
constexpr int64_t kFinishedSteps = 20;
constexpr int64_t kSuspendedSteps = 300;  // of the whole job

// A folder with what one version wrote.
std::string Written(const std::string& version) {
  return absl::StrCat("tests/goldens/state_", version);
}

// Copies a folder. Its files may be links to read-only ones, so the copies become writable.
void Copy(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  fs::copy(from, to, fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(to)) {
    fs::permissions(entry, fs::perms::owner_write, fs::perm_options::add);
  }
}

std::string NewFolder() {
  std::string folder = ::testing::TempDir() + "/old-state-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

// Makes a new folder with the state folder of `version`, without its store.
std::string FolderWithoutStore(const std::string& version) {
  const std::string folder = NewFolder();
  Copy(Written(version) + "/state", folder + "/state");
  fs::remove(folder + "/state/coordinator.db");
  return folder;
}

// Writes a dump of etcd, which is the answer of its gateway to /v3/kv/range.
void Load(const std::string& dump, const EtcdServer& server) {
  std::ifstream file(dump);
  const auto content = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(content.contains("kvs")) << dump;
  const auto stub = etcdserverpb::KV::NewStub(
      grpc::CreateChannel(server.address(), grpc::InsecureChannelCredentials()));
  for (const auto& entry : content["kvs"]) {
    etcdserverpb::TxnRequest request;
    etcdserverpb::PutRequest& put = *request.add_success()->mutable_request_put();
    ASSERT_TRUE(absl::Base64Unescape(entry["key"].get<std::string>(), put.mutable_key()));
    ASSERT_TRUE(absl::Base64Unescape(entry["value"].get<std::string>(), put.mutable_value()));
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    etcdserverpb::TxnResponse response;
    ASSERT_TRUE(stub->Txn(&context, request, &response).ok()) << put.key();
  }
}

// Starts the present programs in `folder`, which has the old state, and expects that they know the
// old jobs and train the suspended one to the values that the old programs reached.
void ExpectTakenOver(const std::string& folder, const std::string& version,
                     std::vector<std::string> coordinator_flags = {}) {
  TrainingCluster cluster({.dir = folder,
                           .ps = 1,
                           .workers = 1,
                           .ps_threads = 1,
                           .threads_per_device = 1,
                           .coordinator_flags = std::move(coordinator_flags)});
  EXPECT_EQ(cluster.Get(kFinished).state(), v1::SUCCEEDED);
  EXPECT_EQ(cluster.Get(kSuspended).state(), v1::SUSPENDED);
  EXPECT_EQ(cluster.Get(kQueued).state(), v1::QUEUED);
  {
    grpc::ClientContext context;
    v1::ListJobsResponse listed;
    ASSERT_TRUE(cluster.jobs().ListJobs(&context, {}, &listed).ok());
    std::set<std::string> names;
    for (const v1::Job& job : listed.jobs()) names.insert(job.name());
    EXPECT_THAT(names, ElementsAre("jobs/finished-1", "jobs/queued-3", "jobs/suspended-2"));
  }
  {
    grpc::ClientContext context;
    v1::ListEventsRequest request;
    v1::ListEventsResponse listed;
    request.set_parent(kFinished);
    ASSERT_TRUE(cluster.jobs().ListEvents(&context, request, &listed).ok());
    std::vector<v1::JobState> states;
    for (const v1::JobEvent& event : listed.events()) states.push_back(event.state());
    EXPECT_THAT(states, Contains(v1::QUEUED));
    EXPECT_THAT(states, Contains(v1::RUNNING));
    EXPECT_THAT(states, Contains(v1::SUCCEEDED));
  }
  {
    grpc::ClientContext context;
    v1::ReadJobMetricsRequest request;
    v1::ReadJobMetricsResponse metrics;
    request.set_name(kFinished);
    ASSERT_TRUE(cluster.jobs().ReadJobMetrics(&context, request, &metrics).ok());
    EXPECT_EQ(metrics.steps(), kFinishedSteps);
  }
  EXPECT_FALSE(cluster.Hashes(kFinished, kFinishedSteps).empty()) << "its checkpoint is sound";

  const int64_t resumed_step = cluster.Get(kSuspended).progress().step();
  EXPECT_GT(resumed_step, 0);
  EXPECT_LT(resumed_step, kSuspendedSteps);
  cluster.Resume(kSuspended);
  cluster.AwaitState(kSuspended, v1::SUCCEEDED);

  EXPECT_EQ(cluster.Metrics(kSuspended).size(), kSuspendedSteps) << "each step once";
  // The checkpoint with which the old programs ended, beside those of the jobs.
  Copy(Written(version) + "/end", cluster.checkpoint_directory("end"));
  // The processor chooses the order in which a sum adds, so bits of another machine may differ.
  EXPECT_LT(LargestDifference(cluster.Parameters(kSuspended, kSuspendedSteps),
                              cluster.Parameters("end", kSuspendedSteps)),
            1e-5);
}

class OldStateTest : public ::testing::TestWithParam<const char*> {};

TEST_P(OldStateTest, AStateFolderIsTakenOver) {
  const std::string folder = NewFolder();
  Copy(Written(GetParam()) + "/state", folder + "/state");
  ExpectTakenOver(folder, GetParam());
}

INSTANTIATE_TEST_SUITE_P(, OldStateTest, ::testing::Values("0.2.0", "0.3.0"),
                         [](const auto& version) {
                           return absl::StrCat("Version", version.index + 2);
                         });

// 0.2.0 has no backups.
TEST(OldBackupTest, ABackupIsRestored) {
  const std::string folder = FolderWithoutStore("0.3.0");
  ASSERT_EQ(system(absl::StrCat("cli/muster admin restore ", Written("0.3.0"),
                                "/backup.muster --state-dir ", folder, "/state")
                       .c_str()),
            0);
  ExpectTakenOver(folder, "0.3.0");
}

// 0.2.0 does not know etcd.
TEST(OldEtcdTest, TheContentOfEtcdIsTakenOver) {
  const auto etcd = EtcdServer::Start();
  if (etcd == nullptr) GTEST_SKIP() << "etcd is not installed: apt-get install etcd-server";
  ASSERT_NO_FATAL_FAILURE(Load(Written("0.3.0") + "/etcd.json", *etcd));
  const std::string folder = FolderWithoutStore("0.3.0");
  ExpectTakenOver(folder, "0.3.0", {absl::StrCat("--store=etcd://", etcd->address())});
}

}  // namespace
}  // namespace muster::old_state_test
