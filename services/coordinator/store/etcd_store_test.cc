#include "services/coordinator/store/etcd_store.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/types/span.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "services/coordinator/store/etcd_client.h"
#include "services/coordinator/testing/etcd_proxy.h"
#include "services/coordinator/testing/etcd_server.h"
#include "services/coordinator/testing/store_conformance.h"

namespace muster::etcd_store_test {
namespace {

using ::testing::HasSubstr;
namespace etcd = ::etcdserverpb;

constexpr absl::Duration kSoon = absl::Seconds(10);

// One server for all tests. Null if etcd is not installed.
EtcdServer* Server() {
  static EtcdServer* const server = EtcdServer::Start().release();
  return server;
}

std::unique_ptr<EtcdClient> ClientOf(const std::string& address) {
  auto client = EtcdClient::Create({.servers = {address}});
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

std::string NewPrefix() {
  static std::atomic<int> made = 0;
  return absl::StrCat("/test-", ++made, "/");
}

class EtcdBench final : public StoreBench {
 public:
  absl::StatusOr<std::unique_ptr<Store>> Open() override {
    return EtcdStore::Open({.client = client_.get(), .prefix = prefix_, .address = "here:1"});
  }
  void SpoilRecord(uint64_t job) override { Spoil("job", job); }
  void SpoilPlan(uint64_t job) override { Spoil("plan", job); }
  void SpoilOrigin(uint64_t job) override {
    Spoil("origin", job);
    Spoil("graph", job);
  }
  void SpoilFirstEvent(uint64_t job) override {
    Put(absl::StrFormat("event/%020d/%020d", job, 1), "v\xff");
  }
  void SpoilCheckpoint(uint64_t job, int64_t step) override {
    Put(absl::StrFormat("checkpoint/%020d/%020d", job, step), "v\xff");
  }
  void SpoilToken(const std::string& id) override { Put(absl::StrCat("token/", id), "v\xff"); }
  int CountPlans() override { return Count("plan/"); }

  int Count(const std::string& under) {
    etcd::RangeRequest request;
    request.set_key(prefix_ + under);
    request.set_range_end(BehindPrefix(prefix_ + under));
    request.set_count_only(true);
    return static_cast<int>(client_->Range(request, kSoon)->count());
  }
  void Put(const std::string& name, const std::string& value) {
    etcd::TxnRequest request;
    etcd::PutRequest* put = request.add_success()->mutable_request_put();
    put->set_key(prefix_ + name);
    put->set_value(value);
    EXPECT_TRUE(client_->Txn(request, kSoon).ok());
  }
  EtcdStore::Options options() const {
    return {.client = client_.get(), .prefix = prefix_, .address = "here:1"};
  }

 private:
  void Spoil(const std::string& kind, uint64_t job) {
    Put(absl::StrFormat("%s/%020d", kind, job), "v\xff");
  }

  const std::unique_ptr<EtcdClient> client_ = ClientOf(Server()->address());
  const std::string prefix_ = NewPrefix();
};

// The conformance suite is not instantiated without etcd. This test reports that.
TEST(EtcdTest, EtcdIsInstalled) {
  if (Server() == nullptr) GTEST_SKIP() << "etcd is not installed: apt-get install etcd-server";
}

std::vector<std::function<std::unique_ptr<StoreBench>()>> Benches() {
  if (Server() == nullptr) return {};
  return {[] { return std::make_unique<EtcdBench>(); }};
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StoreConformance);
INSTANTIATE_TEST_SUITE_P(Etcd, StoreConformance, ::testing::ValuesIn(Benches()));

class EtcdStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Server() == nullptr) GTEST_SKIP() << "etcd is not installed";
    bench_ = std::make_unique<EtcdBench>();
  }
  std::unique_ptr<Store> Open() {
    auto store = bench_->Open();
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  std::unique_ptr<EtcdBench> bench_;
};

TEST_F(EtcdStoreTest, OpenNamesTheLeader) {
  const auto store = Open();

  EXPECT_THAT(std::string(bench_->Open().status().message()),
              HasSubstr("the coordinator at here:1 leads"));
}

TEST_F(EtcdStoreTest, TheNextLeadsWhenTheLeaseOfADeadLeaderEnds) {
  auto stuck = ClientOf(Server()->address());
  // Simulates a killed leader: the lease is neither renewed nor revoked.
  const auto lease = stuck->Grant(absl::Seconds(1), kSoon);
  ASSERT_TRUE(lease.ok()) << lease.status();
  { auto store = Open(); }
  etcd::TxnRequest take;
  etcd::PutRequest* put = take.add_success()->mutable_request_put();
  put->set_key(bench_->options().prefix + "leader");
  put->set_value("dead:1");
  put->set_lease(lease->id());
  ASSERT_TRUE(stuck->Txn(take, kSoon).ok());
  ASSERT_TRUE(absl::IsUnavailable(bench_->Open().status()));

  absl::StatusOr<std::unique_ptr<Store>> next;
  do {
    next = bench_->Open();
  } while (absl::IsUnavailable(next.status()));

  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ((*next)->term(), 2);
}

TEST_F(EtcdStoreTest, ADeposedLeaderWritesNothingAndIsNotified) {
  EtcdStore::Options options = bench_->options();
  std::atomic<int> told = 0;
  options.lost = [&](const absl::Status& why) {
    EXPECT_EQ(ReasonOf(why), "STORE_LOST") << why;
    ++told;
  };
  auto old = EtcdStore::Open(options);
  ASSERT_TRUE(old.ok()) << old.status();
  v1::Job record = *(*old)->AddJob(StoreConformance::Submission("first"));
  // A new value does not change the create revision of the key, so we still lead.
  bench_->Put("leader", "usurper:1");
  ASSERT_TRUE(StoreConformance::Advance(**old, record).ok());
  etcd::TxnRequest depose;
  depose.add_success()->mutable_request_delete_range()->set_key(options.prefix + "leader");
  ASSERT_TRUE(options.client->Txn(depose, kSoon).ok());
  auto next = bench_->Open();
  ASSERT_TRUE(next.ok()) << next.status();

  record.set_state(v1::FAILED);
  EXPECT_EQ(ReasonOf((*old)->Commit({.record = &record})), "STORE_LOST");
  EXPECT_EQ(ReasonOf((*old)->AddJob(StoreConformance::Submission("second")).status()),
            "STORE_LOST");
  EXPECT_EQ(ReasonOf((*old)->DeleteJob(1)), "STORE_LOST");
  EXPECT_EQ(ReasonOf((*old)->PutToken({})), "STORE_LOST");

  EXPECT_EQ(told, 4);
  const auto jobs = (*next)->LoadJobs();
  ASSERT_EQ(jobs->size(), 1);
  EXPECT_EQ(jobs->front().record.state(), v1::RUNNING);
  EXPECT_FALSE((*next)->FindRequest("second")->has_value());
  EXPECT_TRUE((*next)->Tokens()->empty());
}

TEST_F(EtcdStoreTest, RemovesOnlyThePartsThatACrashLeft) {
  {
    auto store = Open();
    Store::Submission submission = StoreConformance::Submission();
    submission.origin.graph.set_name(std::string(600 << 10, 'x'));
    ASSERT_TRUE(store->AddJob(std::move(submission)).ok());
  }
  const int parts = bench_->Count("part/");
  ASSERT_EQ(parts, 2);
  bench_->Put("part/plan/00000000000000000001/7/0", "never named");

  auto store = Open();

  EXPECT_EQ(bench_->Count("part/"), parts);
  EXPECT_EQ(store->LoadJobs()->front().origin.graph.name().size(), 600 << 10);
  ASSERT_TRUE(store->DeleteJob(1).ok());
  EXPECT_EQ(bench_->Count("part/"), 0);
}

TEST_F(EtcdStoreTest, AReplacedPlanLeavesNoParts) {
  auto store = Open();
  v1::Job record = *store->AddJob(StoreConformance::Submission());
  for (const int size : {900 << 10, 600 << 10, 10}) {
    v1::JobPlan plan;
    plan.set_session_token(std::string(size, 'x'));
    ASSERT_TRUE(store->Commit({.record = &record, .plan = &plan}).ok());
    EXPECT_EQ(bench_->Count("part/"), size / (512 << 10) + (size > 10 ? 1 : 0)) << size;
  }
}

TEST_F(EtcdStoreTest, BelongsToOneStateFolder) {
  EtcdStore::Options options = bench_->options();
  options.folder = "folder-a";
  { ASSERT_TRUE(EtcdStore::Open(options).ok()); }

  options.folder = "folder-b";
  const auto elsewhere = EtcdStore::Open(options).status();
  EXPECT_EQ(ReasonOf(elsewhere), "STATE_DIR_NOT_SHARED") << elsewhere;
  EXPECT_TRUE(absl::IsFailedPrecondition(elsewhere));
  options.adopt_folder = true;
  { EXPECT_TRUE(EtcdStore::Open(options).ok()); }
  options.adopt_folder = false;
  EXPECT_TRUE(EtcdStore::Open(options).ok());
}

TEST_F(EtcdStoreTest, RefusesAStoreWithAnUnfinishedRestore) {
  {
    auto store = Open();
    const absl::Status broken =
        store->Import([]() -> absl::StatusOr<std::optional<v1::BackupRecord>> {
          return absl::DataLossError("the disk is gone");
        });
    ASSERT_TRUE(absl::IsDataLoss(broken)) << broken;
  }
  EXPECT_EQ(ReasonOf(bench_->Open().status()), "STORE_CORRUPT");

  // The old data is deleted, and the new data is not there yet.
  EtcdStore::Options options = bench_->options();
  options.give_up = true;
  { ASSERT_TRUE(EtcdStore::Open(options).ok()); }
  EXPECT_EQ(ReasonOf(bench_->Open().status()), "STORE_CORRUPT");

  {
    auto store = EtcdStore::Open(options);
    ASSERT_TRUE(store.ok());
    ASSERT_TRUE(StoreConformance::ImportAll(**store, {}).ok());
  }
  EXPECT_TRUE(Open()->LoadJobs()->empty());
}

// If such a job were imported as intact, it would start from initial values.
TEST_F(EtcdStoreTest, ExportsAJobWithADamagedOriginAsDamaged) {
  {
    auto store = Open();
    for (const char* request : {"first", "second", "third"}) {
      ASSERT_TRUE(store->AddJob(StoreConformance::Submission(request)).ok());
    }
  }
  bench_->Put("origin/00000000000000000001", "v\xff");
  bench_->Put("request/7365636f6e64", "v\xff");  // "second"
  bench_->Put("graph/00000000000000000003", "p7/1");
  std::vector<v1::BackupRecord> records;

  const absl::Status exported = Open()->Export([&](const v1::BackupRecord& record) {
    records.push_back(record);
    return absl::OkStatus();
  });

  ASSERT_TRUE(exported.ok()) << exported;
  EtcdBench other;
  const absl::Status imported = StoreConformance::ImportAll(**other.Open(), records);
  ASSERT_TRUE(imported.ok()) << imported;
  auto store = *other.Open();
  const auto jobs = store->LoadJobs();
  ASSERT_EQ(jobs->size(), 3);
  EXPECT_EQ(ReasonOf(jobs->at(0).damage), "STORE_CORRUPT");
  EXPECT_TRUE(jobs->at(1).damage.ok()) << jobs->at(1).damage;
  EXPECT_EQ(ReasonOf(jobs->at(2).damage), "STORE_CORRUPT");
  EXPECT_FALSE(store->FindRequest("second")->has_value());
  EXPECT_TRUE(store->FindRequest("third")->has_value());
}

TEST_F(EtcdStoreTest, RefusesANewerSchema) {
  Open();
  bench_->Put("meta/schema", "v99");

  EXPECT_EQ(ReasonOf(bench_->Open().status()), "STORE_TOO_NEW");
}

TEST_F(EtcdStoreTest, AnUnreachableServerIsReportedWithItsAddress) {
  const auto client = EtcdClient::Create({.servers = {"127.0.0.1:1"}});

  const auto store = EtcdStore::Open({.client = client->get()}).status();

  EXPECT_TRUE(absl::IsUnavailable(store)) << store;
  EXPECT_EQ(ReasonOf(store), "STORE_UNREACHABLE");
  EXPECT_THAT(std::string(store.message()), HasSubstr("127.0.0.1:1"));
}

// These tests have their own server, because they stop it.
class EtcdOutageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = EtcdServer::Start();
    if (server_ == nullptr) GTEST_SKIP() << "etcd is not installed";
    client_ = ClientOf(server_->address());
  }

  std::unique_ptr<EtcdServer> server_;
  std::unique_ptr<EtcdClient> client_;
};

TEST_F(EtcdOutageTest, WaitsForARestartOfEtcd) {
  auto store = EtcdStore::Open(
      {.client = client_.get(), .lost = [](const absl::Status& why) { FAIL() << why; }});
  ASSERT_TRUE(store.ok()) << store.status();
  server_->Kill();
  absl::StatusOr<v1::Job> job;
  std::thread adding([&] { job = (*store)->AddJob(StoreConformance::Submission()); });

  server_->Restart();

  adding.join();
  EXPECT_TRUE(job.ok()) << job.status();
  EXPECT_EQ((*store)->LoadJobs()->size(), 1);
}

TEST_F(EtcdOutageTest, AnOutageLongerThanTheLeaseEndsTheLeadership) {
  absl::Notification told;
  auto store = EtcdStore::Open(
      {.client = client_.get(), .lease = absl::Seconds(1), .lost = [&](const absl::Status& why) {
         EXPECT_EQ(ReasonOf(why), "STORE_LOST") << why;
         if (!told.HasBeenNotified()) told.Notify();
       }});
  ASSERT_TRUE(store.ok()) << store.status();

  server_->Send(SIGSTOP);

  EXPECT_TRUE(told.WaitForNotificationWithTimeout(kSoon));
  EXPECT_EQ(ReasonOf((*store)->DeleteJob(1)), "STORE_LOST");
  server_->Send(SIGCONT);
}

// A long value is stored in parts, which must be deleted with its name.
TEST_F(EtcdStoreTest, DeletesAllPartsOfLongValues) {
  const std::string megabyte(1 << 20, 'x');
  auto store = Open();
  for (const char* request : {"a", "a/0"}) {  // the second id begins like the parts of the first
    Store::Submission submission = StoreConformance::Submission(request);
    submission.fingerprint = megabyte;
    submission.record.set_message(megabyte);
    ASSERT_TRUE(store->AddJob(std::move(submission)).ok());
  }
  constexpr int kOfAJob = 9;  // one job: request, record and event, each a little over a megabyte
  ASSERT_EQ(bench_->Count("part/"), 2 * kOfAJob);

  ASSERT_TRUE(store->DeleteJob(1).ok());
  EXPECT_EQ(bench_->Count("part/"), kOfAJob);
  const auto request = store->FindRequest("a/0");
  ASSERT_TRUE(request.ok() && request->has_value()) << request.status();
  EXPECT_TRUE((*request)->fingerprint == megabyte);

  v1::Job record = store->LoadJobs()->front().record;
  record.clear_message();
  record.set_revision(limits::kJobEventsKeptMax + 2);
  v1::JobEvent event;
  event.set_revision(record.revision());
  v1::Checkpoint checkpoint;
  checkpoint.set_step(20);
  checkpoint.set_name(megabyte);
  ASSERT_TRUE(store
                  ->Commit({.record = &record,
                            .events = absl::MakeConstSpan(&event, 1),
                            .checkpoint = &checkpoint})
                  .ok());
  const int64_t step = 20;
  ASSERT_TRUE(
      store->Commit({.record = &record, .checkpoints_removed = absl::MakeConstSpan(&step, 1)})
          .ok());
  EXPECT_EQ(bench_->Count("part/"), bench_->Count("part/request/"));

  ASSERT_TRUE(store->DeleteJob(2).ok());
  EXPECT_EQ(bench_->Count("part/"), 0);
}

// Puts a proxy between store and etcd that loses calls.
class EtcdFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Server() == nullptr) GTEST_SKIP() << "etcd is not installed";
    proxy_ = std::make_unique<EtcdProxy>(Server()->address());
    client_ = ClientOf(proxy_->address());
    options_ = {.client = client_.get(), .prefix = NewPrefix()};
  }
  std::unique_ptr<Store> Open() {
    auto store = EtcdStore::Open(options_);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  static grpc::Status Late() { return {grpc::StatusCode::DEADLINE_EXCEEDED, "late"}; }
  static grpc::Status Full() {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded"};
  }

  std::unique_ptr<EtcdProxy> proxy_;
  std::unique_ptr<EtcdClient> client_;
  EtcdStore::Options options_;
};

TEST_F(EtcdFaultTest, ALateAttemptUndoesNothing) {
  auto store = Open();
  v1::Job record = *store->AddJob(StoreConformance::Submission());
  std::vector<etcd::TxnRequest> held_up;
  proxy_->OnTransaction([&](const auto&, const etcd::TxnRequest& request, auto pass) {
    if (!held_up.empty()) return pass();
    held_up.push_back(request);
    return Late();
  });
  record.set_state(v1::PREPARING);
  ASSERT_TRUE(store->Commit({.record = &record}).ok()) << "by another attempt";
  record.set_state(v1::RUNNING);
  ASSERT_TRUE(store->Commit({.record = &record}).ok());

  ASSERT_EQ(held_up.size(), 1);
  etcd::TxnResponse response;
  ASSERT_TRUE(proxy_->Pass(held_up[0], &response).ok());

  EXPECT_FALSE(response.succeeded());
  EXPECT_EQ(store->LoadJobs()->front().record.state(), v1::RUNNING);
  EXPECT_TRUE(StoreConformance::Advance(*store, record).ok()) << "the store still works";
}

TEST_F(EtcdFaultTest, DetectsThatAnUnansweredTransactionSucceeded) {
  auto store = Open();
  int attempts = 0;
  proxy_->OnTransaction([&](const auto&, const auto&, auto pass) {
    if (++attempts != 1) return pass();
    EXPECT_TRUE(pass().ok());
    return Late();
  });

  const auto job = store->AddJob(StoreConformance::Submission("request"));

  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(attempts, 2);
  EXPECT_EQ(store->AddJob(StoreConformance::Submission())->number(), 2);
  EXPECT_EQ(store->LoadJobs()->size(), 2);
}

TEST_F(EtcdFaultTest, ARefusalAfterASuccessfulAttemptReusesNoNumber) {
  auto store = Open();
  int attempts = 0;
  proxy_->OnTransaction([&](const auto&, const auto&, auto pass) {
    ++attempts;
    if (attempts == 1) return pass().ok() ? Late() : Full();
    return attempts == 2 ? Full() : pass();
  });

  const auto job = store->AddJob(StoreConformance::Submission("request"));

  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(store->AddJob(StoreConformance::Submission())->number(), 2);
  EXPECT_EQ((*store->FindRequest("request"))->job, "net-1");
}

TEST_F(EtcdFaultTest, ALateSuccessAfterARefusalEndsTheLeadership) {
  auto store = Open();
  std::vector<etcd::TxnRequest> held_up;
  int attempts = 0;
  proxy_->OnTransaction([&](const auto&, const etcd::TxnRequest& request, auto pass) {
    ++attempts;
    if (attempts == 1) held_up.push_back(request);
    return attempts == 1 ? Late() : attempts == 2 ? Full() : pass();
  });
  EXPECT_EQ(ReasonOf(store->AddJob(StoreConformance::Submission()).status()), "STORE_FULL");
  EXPECT_TRUE(store->LoadJobs()->empty());

  etcd::TxnResponse response;
  ASSERT_TRUE(proxy_->Pass(held_up[0], &response).ok());
  ASSERT_TRUE(response.succeeded()) << "the late attempt is still in its turn";

  EXPECT_EQ(ReasonOf(store->AddJob(StoreConformance::Submission()).status()), "STORE_LOST");
  store.reset();
  EXPECT_EQ(Open()->AddJob(StoreConformance::Submission())->number(), 2);
}

TEST_F(EtcdFaultTest, JobsCanBeDeletedWhenEtcdIsFull) {
  auto store = Open();
  ASSERT_TRUE(store->AddJob(StoreConformance::Submission("request")).ok());
  // Like etcd when it is full: accepts transactions without puts.
  proxy_->OnTransaction([&](const auto&, const etcd::TxnRequest& request, auto pass) {
    for (const etcd::RequestOp& op : request.success()) {
      if (op.has_request_put()) return Full();
    }
    return pass();
  });

  EXPECT_EQ(ReasonOf(store->AddJob(StoreConformance::Submission()).status()), "STORE_FULL");
  const absl::Status deleted = store->DeleteJob(1);

  EXPECT_TRUE(deleted.ok()) << deleted;
  proxy_->OnTransaction(nullptr);
  EXPECT_EQ(store->AddJob(StoreConformance::Submission())->number(), 2);
}

TEST_F(EtcdFaultTest, WaitsLongerForSlowServersInEachRound) {
  const auto client =
      EtcdClient::Create({.servers = {proxy_->address()}, .try_max = absl::Seconds(1)});
  int attempts = 0;
  proxy_->OnTransaction([&](const grpc::ServerContext& context, const auto&, auto pass) {
    ++attempts;
    const auto patience = context.deadline() - std::chrono::system_clock::now();
    return patience < std::chrono::milliseconds(3500) ? Late() : pass();
  });

  const auto answer = (*client)->Txn({}, absl::Seconds(30));

  EXPECT_TRUE(answer.ok()) << answer.status();
  EXPECT_GE(attempts, 3);
}

TEST_F(EtcdFaultTest, ALeaseSurvivesFailedRenewals) {
  options_.lease = absl::Seconds(2);
  absl::Notification settled;
  std::atomic<bool> lost = false;
  std::atomic<int> renewals = 0;
  options_.lost = [&](const absl::Status&) {
    lost = true;
    if (!settled.HasBeenNotified()) settled.Notify();
  };
  proxy_->OnRenewal([&] {
    const int renewal = ++renewals;
    if (renewal <= 3) return grpc::Status(grpc::StatusCode::INTERNAL, "no leader yet");
    if (renewal == 6 && !settled.HasBeenNotified()) settled.Notify();
    return grpc::Status::OK;
  });

  auto store = Open();

  EXPECT_TRUE(settled.WaitForNotificationWithTimeout(kSoon));
  EXPECT_FALSE(lost);
  store.reset();
}

TEST_F(EtcdFaultTest, AuthenticatesAgainAfterAChangeOfUsers) {
  const std::string password = ::testing::TempDir() + "/any-password";
  std::ofstream(password) << "any\n";
  const auto client = EtcdClient::Create(
      {.servers = {proxy_->address()}, .user = "muster", .password_file = password});
  proxy_->OnTransaction([&](const grpc::ServerContext& context, const auto&, auto pass) {
    const auto token = context.client_metadata().find("token");
    const bool old = token == context.client_metadata().end() || token->second != "token-3";
    return old ? grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                              "etcdserver: revision of auth store is old")
               : pass();
  });

  const auto answer = (*client)->Txn({}, kSoon);

  EXPECT_TRUE(answer.ok()) << answer.status();
}

// Calls etcd's HTTP gateway, because the store has no functions to administer users.
std::string Post(const std::string& address, const std::string& path, const std::string& body) {
  const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in server{};
  server.sin_family = AF_INET;
  server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  server.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
  EXPECT_EQ(connect(file, reinterpret_cast<sockaddr*>(&server), sizeof(server)), 0);
  const std::string request =
      absl::StrCat("POST ", path,
                   " HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: ", body.size(),
                   "\r\n\r\n", body);
  EXPECT_EQ(write(file, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  char piece[4096];
  for (ssize_t bytes; (bytes = read(file, piece, sizeof(piece))) > 0;) answer.append(piece, bytes);
  close(file);
  return answer;
}

TEST(EtcdClientTest, AuthenticatesAndRepeatsItAfterARestartOfEtcd) {
  auto server = EtcdServer::Start();
  if (server == nullptr) GTEST_SKIP() << "etcd is not installed";
  for (const auto& [path, body] : {std::pair("user/add", R"({"name":"root","password":"secret"})"),
                                   {"role/add", R"({"name":"root"})"},
                                   {"user/grant", R"({"user":"root","role":"root"})"},
                                   {"enable", "{}"}}) {
    const std::string answer = Post(server->address(), absl::StrCat("/v3/auth/", path), body);
    ASSERT_THAT(answer, HasSubstr("200 OK"));
  }
  const std::string password = ::testing::TempDir() + "/password";
  std::ofstream(password) << "secret\n";
  EtcdClient::Options options{
      .servers = {server->address()}, .user = "root", .password_file = password};
  const auto client = EtcdClient::Create(options);
  auto store = EtcdStore::Open({.client = client->get()});
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->AddJob(StoreConformance::Submission()).ok());

  server->Kill();  // it forgets its tokens
  server->Restart();
  EXPECT_TRUE((*store)->AddJob(StoreConformance::Submission()).ok());

  const auto stranger = EtcdStore::Open({.client = ClientOf(server->address()).get()}).status();
  EXPECT_EQ(ReasonOf(stranger), "STORE_UNWRITABLE") << stranger;
  std::ofstream(password) << "wrong";
  const auto wrong = EtcdStore::Open({.client = EtcdClient::Create(options)->get()}).status();
  EXPECT_EQ(ReasonOf(wrong), "STORE_UNWRITABLE") << wrong;
}

TEST(EtcdClientTest, UsesAnotherServerIfOneIsDown) {
  if (Server() == nullptr) GTEST_SKIP() << "etcd is not installed";
  const auto client = EtcdClient::Create({.servers = {"127.0.0.1:1", Server()->address()}});
  etcd::RangeRequest request;
  request.set_key("none");

  EXPECT_TRUE((*client)->Range(request, kSoon).ok());
  EXPECT_EQ((*client)->servers(), "127.0.0.1:1," + Server()->address());
}

TEST(EtcdClientTest, BehindPrefixReturnsTheFirstKeyAfterThePrefix) {
  EXPECT_EQ(BehindPrefix("job/"), "job0");
  EXPECT_EQ(BehindPrefix("a\xff"), "b");
  EXPECT_EQ(BehindPrefix("\xff"), std::string(1, '\0'));
}

}  // namespace
}  // namespace muster::etcd_store_test
