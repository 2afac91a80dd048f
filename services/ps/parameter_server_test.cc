#include "services/ps/parameter_server.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "lib/shard/testing/fake_member_service.h"
#include "lib/shard/testing/test_plan.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/core/crc32c.h"
#include "lib/transport/session/session.h"
#include "lib/transport/testing/inprocess_transport.h"

namespace muster::parameter_server_test {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);
constexpr int kThreads = 2;

// One worker of a job, on the test's thread. Its gradients are constant.
class FakeWorker : private MessageReceiver {
 public:
  FakeWorker(InProcessNetwork* network, v1::JobPlan plan, const v1::Hello& ps)
      : plan_(std::move(plan)), transport_(network->MakeTransport()), buffer_(1 << 20) {
    transport_->SetReceiver(this);
    const LinkCredentials credentials{
        .self = {.job = plan_.job_number(), .generation = plan_.generation()},
        .token = *SessionToken::FromBytes(plan_.session_token())};
    for (const v1::PlanShard& shard : plan_.shards()) {
      peers_.push_back(*transport_->Connect(ps.addresses(shard.thread()), credentials));
      transport_->Send(peers_.back(),
                       {.kind = MessageKind::kHello,
                        .generation = plan_.generation(),
                        .job = plan_.job_number()},
                       {}, nullptr);
    }
    Await([this] { return greeted_ == plan_.shards_size(); });
  }

  void Step(int64_t step) {
    answered_ = 0;
    for (int chunk = 0; chunk < plan_.chunks_size(); ++chunk) {
      transport_->Send(peers_[plan_.chunks(chunk).shard()], PushHeader(plan_, step, chunk, 0),
                       {reinterpret_cast<const std::byte*>(gradient_.data()),
                        plan_.chunks(chunk).elements() * sizeof(float)},
                       nullptr);
    }
    Await([this] { return answered_ == plan_.chunks_size(); });
  }

  const std::vector<float>& values(int chunk) { return values_[chunk]; }

 private:
  void Await(std::function<bool()> done) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (!done()) {
      ASSERT_LT(absl::Now(), deadline);
      if (transport_->Progress() == 0) transport_->Wait(deadline - absl::Now());
    }
  }

  void PeerJoined(PeerId, const LinkIdentity&) override {}
  PayloadPlace PlacePayload(PeerId, const WireHeader& header) override {
    return absl::MakeSpan(buffer_).first(header.length);
  }
  void Received(PeerId, const WireHeader& header, absl::Span<const std::byte> payload,
                PayloadLease) override {
    greeted_ += header.kind == MessageKind::kHello;
    EXPECT_NE(header.kind, MessageKind::kRefused) << RefusalReasonName(header.reason);
    if (header.kind != MessageKind::kParams) return;
    ++answered_;
    std::vector<float>& values = values_[static_cast<int>(header.chunk)];
    values.resize(payload.size() / sizeof(float));
    std::memcpy(values.data(), payload.data(), payload.size());
  }
  void PayloadLost(PeerId, const WireHeader&) override {}
  void PeerLost(PeerId, const absl::Status&) override {}

  const v1::JobPlan plan_;
  const std::vector<float> gradient_ = std::vector<float>(10000, 0.5f);
  std::unique_ptr<Transport> transport_;
  std::vector<std::byte> buffer_;
  std::vector<PeerId> peers_;
  std::map<int, std::vector<float>> values_;
  int greeted_ = 0;
  int answered_ = 0;
};

class ParameterServerTest : public testing::Test {
 protected:
  ParameterServerTest() {
    auto server = ParameterServer::Create(
        {.member = "ps-0",
         .threads = kThreads,
         .memory_bytes = 1 << 20,
         .transport = [this]() -> absl::StatusOr<std::unique_ptr<Transport>> {
           return network_.MakeTransport();
         },
         .coordinator = service_.address(),
         .metrics = &metrics_,
         .report_soon =
             [this] {
               absl::MutexLock lock(&mu_);
               changed_ = true;
               if (std::this_thread::get_id() != self_) mu_.Await(absl::Condition(&others_go_on_));
             }});
    server_ = *std::move(server);
    server_->Describe(hello_);
  }

  static TestPlanOptions Options() {
    return {.parameters = {300, 500, 7}, .workers = 1, .shards = 2, .threads = kThreads};
  }

  v1::Directive For(const v1::JobPlan& plan) {
    v1::Directive directive;
    directive.set_job(plan.job());
    directive.set_generation(plan.generation());
    return directive;
  }
  void Prepare(const v1::JobPlan& plan) {
    v1::Directive directive = For(plan);
    *directive.mutable_prepare()->mutable_plan() = plan;
    server_->Handle(directive);
  }
  void Start(const v1::JobPlan& plan, int64_t total_steps) {
    v1::Directive directive = For(plan);
    directive.mutable_start()->set_total_steps(total_steps);
    server_->Handle(directive);
  }
  void Snapshot(const v1::JobPlan& plan, uint64_t id, int64_t step) {
    v1::Directive directive = For(plan);
    directive.mutable_snapshot()->set_snapshot(id);
    directive.mutable_snapshot()->set_step(step);
    server_->Handle(directive);
  }
  void Release(const v1::JobPlan& plan) {
    v1::Directive directive = For(plan);
    directive.mutable_release();
    server_->Handle(directive);
  }

  void Halt(const v1::JobPlan& plan) {
    v1::Directive directive = For(plan);
    directive.mutable_halt();
    server_->Handle(directive);
  }

  std::optional<v1::JobReport> ReportOf(const v1::JobPlan& plan) {
    for (const v1::JobReport& report : server_->Report()) {
      if (report.job() == plan.job()) return report;
    }
    return std::nullopt;
  }

  // Checks the report whenever the server says that it changed.
  v1::JobReport AwaitReport(const v1::JobPlan& plan,
                            const std::function<bool(const v1::JobReport&)>& wanted) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (absl::Now() < deadline) {
      auto report = ReportOf(plan);
      if (report && wanted(*report)) return *report;
      absl::MutexLock lock(&mu_);
      mu_.AwaitWithDeadline(absl::Condition(&changed_), deadline);
      changed_ = false;
    }
    ADD_FAILURE() << "the expected report never came";
    return {};
  }
  v1::JobReport AwaitState(const v1::JobPlan& plan, v1::MemberJobState state) {
    return AwaitReport(plan, [=](const v1::JobReport& report) { return report.state() == state; });
  }

  static std::function<bool(const v1::JobReport&)> Answered(uint64_t id,
                                                            v1::SnapshotOutcome outcome) {
    return [=](const v1::JobReport& report) {
      return 2 == std::ranges::count_if(report.snapshots(), [&](const v1::SnapshotReport& answer) {
               return answer.snapshot() == id && answer.outcome() == outcome;
             });
    };
  }
  // The data that both shards wrote for a snapshot, by chunk. `writes_` counts all writes.
  std::map<int, std::string> SavedAs(uint64_t id) {
    writes_ += 2;
    std::map<int, std::string> saved;
    for (const auto& stream : service_.AwaitWritten(writes_)) {
      if (stream.header.snapshot() != id) continue;
      for (const v1::ShardSlice& slice : stream.slices) saved[slice.chunk()] += slice.data();
    }
    return saved;
  }

  void SetOthersGoOn(bool go_on) {
    absl::MutexLock lock(&mu_);
    others_go_on_ = go_on;
  }

  double UsedBytes() {
    server_->Report();
    const std::string text = metrics_.Render();
    const std::string name = "\nmuster_ps_shard_bytes ";
    return std::stod(text.substr(text.find(name) + name.size()));
  }

  InProcessNetwork network_;
  FakeMemberService service_;
  Metrics metrics_;
  absl::Mutex mu_;
  bool changed_ ABSL_GUARDED_BY(mu_) = false;
  const std::thread::id self_ = std::this_thread::get_id();
  bool others_go_on_ ABSL_GUARDED_BY(mu_) = true;  // the server's reporting threads may continue
  v1::Hello hello_;
  size_t writes_ = 0;
  std::unique_ptr<ParameterServer> server_;  // last: destroyed first
};

TEST_F(ParameterServerTest, DescribesItself) {
  EXPECT_EQ(hello_.member(), "ps-0");
  EXPECT_EQ(hello_.role(), v1::PS);
  EXPECT_EQ(hello_.addresses_size(), kThreads);
  EXPECT_EQ(hello_.memory_bytes(), 1 << 20);
  EXPECT_EQ(hello_.transport(), "inprocess");
  EXPECT_TRUE(server_->Report().empty());
}

TEST_F(ParameterServerTest, ServesAJobFromPrepareToRelease) {
  const v1::JobPlan plan = MakeTestPlan(Options());
  Prepare(plan);
  AwaitState(plan, v1::MEMBER_PREPARED);
  Start(plan, 4);
  AwaitState(plan, v1::MEMBER_RUNNING);
  FakeWorker worker(&network_, plan, hello_);
  for (int64_t step = 0; step < 4; ++step) worker.Step(step);
  EXPECT_EQ(ReportOf(plan)->next_step(), 4);
  const std::string serving = metrics_.Render();
  for (const std::string& line :
       {absl::StrCat("muster_ps_version{job=\"job-7\"} 4"),
        absl::StrCat("muster_ps_job_pushes_total{job=\"job-7\"} ", 4 * plan.chunks_size()),
        absl::StrCat("muster_ps_gate_wait_seconds_total{job=\"job-7\",worker=\"",
                     plan.workers(0).member(), "\"} 0")}) {
    EXPECT_NE(serving.find(line), std::string::npos) << line << "\n" << serving;
  }
  EXPECT_EQ(serving.find("muster_ps_job_bytes{job=\"job-7\"} 0"), std::string::npos);

  // The final checkpoint has one stream per shard.
  AwaitReport(plan, [](const v1::JobReport& report) {
    return report.snapshots_size() == 2 && report.snapshots(0).outcome() == v1::SNAPSHOT_WRITTEN &&
           report.snapshots(1).outcome() == v1::SNAPSHOT_WRITTEN;
  });
  std::map<int, std::string> written;
  for (const auto& stream : service_.AwaitWritten(2)) {
    EXPECT_EQ(stream.header.step(), 4);
    EXPECT_EQ(stream.header.snapshot(), 0);
    for (const v1::ShardSlice& slice : stream.slices) written[slice.chunk()] += slice.data();
  }
  ASSERT_EQ(written.size(), plan.chunks_size());
  for (auto& [chunk, bytes] : written) {
    const std::vector<float>& values = worker.values(chunk);
    ASSERT_EQ(bytes.size(), values.size() * sizeof(float));
    EXPECT_EQ(std::memcmp(bytes.data(), values.data(), bytes.size()), 0);
  }

  Release(plan);
  EXPECT_TRUE(server_->Report().empty());
  EXPECT_EQ(metrics_.Render().find("muster_ps_version{"), std::string::npos);
  const absl::Time deadline = absl::Now() + kPatience;
  while (UsedBytes() > 0 && absl::Now() < deadline) continue;
  EXPECT_EQ(UsedBytes(), 0);
  while (metrics_.Render().find("job=\"job-7\"") != std::string::npos && absl::Now() < deadline) {
    continue;  // the last messages of the shards
  }
  EXPECT_EQ(metrics_.Render().find("job=\"job-7\""), std::string::npos);
  EXPECT_NE(metrics_.Render().find(absl::StrCat("muster_ps_pushes_total ", 4 * plan.chunks_size())),
            std::string::npos)
      << "counts of the process stay after the release";
}

TEST_F(ParameterServerTest, ServesSeveralJobsAtOnce) {
  TestPlanOptions options = Options();
  const v1::JobPlan first = MakeTestPlan(options);
  options.job_number = 8;
  const v1::JobPlan second = MakeTestPlan(options);
  for (const v1::JobPlan& plan : {first, second}) {
    Prepare(plan);
    AwaitState(plan, v1::MEMBER_PREPARED);
    Start(plan, 10);
  }
  FakeWorker first_worker(&network_, first, hello_), second_worker(&network_, second, hello_);
  first_worker.Step(0);
  second_worker.Step(0);
  Release(first);
  second_worker.Step(1);
  EXPECT_FALSE(ReportOf(first).has_value());
  EXPECT_EQ(ReportOf(second)->next_step(), 2);
}

TEST_F(ParameterServerTest, RefusesAJobBeyondItsMemory) {
  TestPlanOptions options = Options();
  options.parameters = {1 << 18};
  const v1::JobPlan large = MakeTestPlan(options);
  Prepare(large);
  const v1::JobReport report = AwaitState(large, v1::MEMBER_FAILED);
  EXPECT_EQ(report.error().reason(), "MEMORY_EXHAUSTED");
  EXPECT_EQ(report.error().message().find("ps-0: "), std::string::npos)
      << "the coordinator adds the member";
  options.job_number = 8;
  options.parameters = {100};
  const v1::JobPlan small = MakeTestPlan(options);
  Prepare(small);
  AwaitState(small, v1::MEMBER_PREPARED);
}

TEST_F(ParameterServerTest, FaultyPlanFailsAndNothingElse) {
  v1::JobPlan plan = MakeTestPlan(Options());
  plan.mutable_shards(1)->set_thread(kThreads);
  Prepare(plan);
  EXPECT_EQ(AwaitState(plan, v1::MEMBER_FAILED).error().reason(), "BAD_PLAN");
  Release(plan);
  EXPECT_TRUE(server_->Report().empty());
}

TEST_F(ParameterServerTest, RepeatedDirectivesChangeNothing) {
  const v1::JobPlan plan = MakeTestPlan(Options());
  Prepare(plan);
  Prepare(plan);
  AwaitState(plan, v1::MEMBER_PREPARED);
  Start(plan, 10);
  Prepare(plan);
  Start(plan, 10);
  EXPECT_EQ(ReportOf(plan)->state(), v1::MEMBER_RUNNING);
  FakeWorker worker(&network_, plan, hello_);
  worker.Step(0);
  for (int i = 0; i < 3; ++i) Snapshot(plan, 5, 1);
  service_.AwaitWritten(2);
  AwaitReport(plan, [](const v1::JobReport& report) {
    return report.snapshots_size() == 2 && report.snapshots(0).snapshot() == 5 &&
           report.snapshots(0).outcome() == v1::SNAPSHOT_WRITTEN &&
           report.snapshots(1).outcome() == v1::SNAPSHOT_WRITTEN;
  });
  EXPECT_EQ(service_.calls(), 2);
  Release(plan);
  Release(plan);
}

TEST_F(ParameterServerTest, MissedSnapshotIsReported) {
  const v1::JobPlan plan = MakeTestPlan(Options());
  Prepare(plan);
  AwaitState(plan, v1::MEMBER_PREPARED);
  Start(plan, 10);
  FakeWorker worker(&network_, plan, hello_);
  worker.Step(0);
  Snapshot(plan, 5, 0);
  AwaitReport(plan, [](const v1::JobReport& report) {
    return report.snapshots_size() == 2 && report.snapshots(0).outcome() == v1::SNAPSHOT_MISSED;
  });
}

TEST_F(ParameterServerTest, TrainingContinuesWhileTheCoordinatorTakesNoSnapshots) {
  TestPlanOptions options = Options();
  options.checkpoint_every = 4;
  const v1::JobPlan plan = MakeTestPlan(options);
  service_.FailNext({4, {grpc::StatusCode::UNAVAILABLE, "restarting"}});
  Prepare(plan);
  AwaitState(plan, v1::MEMBER_PREPARED);
  Start(plan, 100);
  FakeWorker worker(&network_, plan, hello_);
  for (int64_t step = 0; step < 8; ++step) worker.Step(step);
  for (const auto& stream : service_.AwaitWritten(4)) {
    EXPECT_TRUE(stream.header.step() == 4 || stream.header.step() == 8);
  }
}

TEST_F(ParameterServerTest, NewGenerationTakesOver) {
  TestPlanOptions options = Options();
  options.parameters = {15000};  // the memory has room for only one job of this size
  const v1::JobPlan old_plan = MakeTestPlan(options);
  Prepare(old_plan);
  AwaitState(old_plan, v1::MEMBER_PREPARED);
  options.generation = 2;
  const v1::JobPlan plan = MakeTestPlan(options);
  Prepare(plan);
  AwaitReport(plan, [](const v1::JobReport& report) {
    return report.generation() == 2 && report.state() == v1::MEMBER_PREPARED;
  });
  Prepare(old_plan);
  Start(old_plan, 10);
  Release(old_plan);
  EXPECT_EQ(ReportOf(plan)->state(), v1::MEMBER_PREPARED);
  Start(plan, 10);
  FakeWorker worker(&network_, plan, hello_);
  worker.Step(0);
}

TEST_F(ParameterServerTest, HaltedShardsContinueInTheNextGeneration) {
  v1::JobPlan plan = MakeTestPlan(Options());
  Prepare(plan);
  AwaitState(plan, v1::MEMBER_PREPARED);
  Start(plan, 10);
  auto worker = std::make_unique<FakeWorker>(&network_, plan, hello_);
  worker->Step(0);
  worker->Step(1);
  const std::vector<float> before = worker->values(0);
  const double running = UsedBytes();
  Halt(plan);
  Halt(plan);
  const v1::JobReport halted = AwaitState(plan, v1::MEMBER_HALTED);
  EXPECT_EQ(halted.oldest_version(), 1);
  EXPECT_EQ(halted.next_step(), 2);
  EXPECT_GT(UsedBytes(), 0);
  EXPECT_LT(UsedBytes(), running) << "memory for gradients is returned";

  plan.set_carries(plan.generation());
  plan.set_generation(plan.generation() + 1);
  plan.set_first_step(2);
  plan.set_session_token(std::string(SessionToken::kBytes, 'n'));
  Prepare(plan);
  AwaitState(plan, v1::MEMBER_PREPARED);
  EXPECT_EQ(UsedBytes(), running);
  Start(plan, 10);
  FakeWorker next(&network_, plan, hello_);
  next.Step(2);
  EXPECT_EQ(next.values(0)[0], before[0] - 0.25f) << "one more step of the same values";

  Halt(plan);
  AwaitState(plan, v1::MEMBER_HALTED);
  Release(plan);
  const absl::Time deadline = absl::Now() + kPatience;
  while (UsedBytes() > 0 && absl::Now() < deadline) continue;
  EXPECT_EQ(UsedBytes(), 0);
}

// A held version that is saved has the same bytes as a snapshot of its step.
TEST_F(ParameterServerTest, HaltedShardsAreSavedWithTheBytesOfTheirStep) {
  v1::JobPlan plan = MakeTestPlan(Options());
  Prepare(plan);
  AwaitState(plan, v1::MEMBER_PREPARED);
  Start(plan, 10);
  auto worker = std::make_unique<FakeWorker>(&network_, plan, hello_);
  std::map<int64_t, std::map<int, std::string>> on_the_way;  // by version and chunk
  for (int64_t step = 0; step < 3; ++step) {
    worker->Step(step);
    Snapshot(plan, /*id=*/1 + step, step + 1);
    on_the_way[step + 1] = SavedAs(1 + step);
  }
  Halt(plan);
  const v1::JobReport halted = AwaitState(plan, v1::MEMBER_HALTED);
  ASSERT_EQ(halted.oldest_version(), 2);
  ASSERT_EQ(halted.next_step(), 3);
  worker.reset();

  for (const int64_t version : {2, 3}) {
    SCOPED_TRACE(version);
    for (int i = 0; i < 3; ++i) Snapshot(plan, 10 + version, version);
    EXPECT_EQ(SavedAs(10 + version), on_the_way[version]);
    const v1::JobReport report = AwaitReport(plan, Answered(10 + version, v1::SNAPSHOT_WRITTEN));
    EXPECT_EQ(report.state(), v1::MEMBER_HALTED);
    EXPECT_EQ(report.next_step(), 3);
  }
  EXPECT_NE(on_the_way[2], on_the_way[3]);
  EXPECT_EQ(service_.calls(), 5 * 2) << "a repeated directive";
  Snapshot(plan, 20, 1);
  AwaitReport(plan, Answered(20, v1::SNAPSHOT_MISSED));

  Release(plan);
  const absl::Time deadline = absl::Now() + kPatience;
  while (UsedBytes() > 0 && absl::Now() < deadline) continue;
  EXPECT_EQ(UsedBytes(), 0);
}

// The next generation would overwrite the memory that is being read.
TEST_F(ParameterServerTest, SaveOfHaltedShardsEndsBeforeTheNextGenerationGetsThem) {
  v1::JobPlan plan = MakeTestPlan(Options());
  Prepare(plan);
  AwaitState(plan, v1::MEMBER_PREPARED);
  Start(plan, 10);
  auto worker = std::make_unique<FakeWorker>(&network_, plan, hello_);
  worker->Step(0);
  Halt(plan);
  AwaitState(plan, v1::MEMBER_HALTED);
  worker.reset();
  SetOthersGoOn(false);
  Snapshot(plan, 5, 1);
  service_.AwaitWritten(2);

  v1::JobPlan next = plan;
  next.set_carries(plan.generation());
  next.set_generation(plan.generation() + 1);
  next.set_first_step(1);
  next.set_session_token(std::string(SessionToken::kBytes, 'n'));
  Prepare(next);
  EXPECT_EQ(ReportOf(plan)->generation(), plan.generation()) << "the writer has not ended";
  SetOthersGoOn(true);
  const absl::Time deadline = absl::Now() + kPatience;
  while (ReportOf(plan)->generation() == plan.generation() && absl::Now() < deadline) Prepare(next);
  AwaitState(next, v1::MEMBER_PREPARED);
  Start(next, 10);
  FakeWorker again(&network_, next, hello_);
  again.Step(1);
  EXPECT_EQ(ReportOf(next)->next_step(), 2);
}

TEST_F(ParameterServerTest, ReleaseDuringASaveOfHaltedShardsDropsTheJob) {
  const v1::JobPlan plan = MakeTestPlan(Options());
  Prepare(plan);
  AwaitState(plan, v1::MEMBER_PREPARED);
  Start(plan, 10);
  Halt(plan);
  AwaitState(plan, v1::MEMBER_HALTED);
  service_.StallNextWrite();
  Snapshot(plan, 5, 0);
  const absl::Time deadline = absl::Now() + kPatience;
  while (service_.calls() < 2 && absl::Now() < deadline) continue;
  Release(plan);
  EXPECT_TRUE(server_->Report().empty());
  while (UsedBytes() > 0 && absl::Now() < deadline) continue;
  EXPECT_EQ(UsedBytes(), 0);
}

TEST_F(ParameterServerTest, MissingShardsAreNotCarriedOn) {
  v1::JobPlan plan = MakeTestPlan(Options());
  plan.set_generation(2);
  plan.set_carries(1);
  Prepare(plan);
  EXPECT_EQ(AwaitState(plan, v1::MEMBER_FAILED).error().reason(), "SHARDS_NOT_HELD");
  Halt(plan);
  const v1::JobReport halted = AwaitState(plan, v1::MEMBER_HALTED);
  EXPECT_GT(halted.oldest_version(), halted.next_step()) << "holds no version";
}

TEST_F(ParameterServerTest, ReportsMembersThatLostTheirLinks) {
  const v1::JobPlan plan = MakeTestPlan(Options());
  Prepare(plan);
  AwaitState(plan, v1::MEMBER_PREPARED);
  Start(plan, 10);
  auto worker = std::make_unique<FakeWorker>(&network_, plan, hello_);
  EXPECT_TRUE(ReportOf(plan)->lost_links().empty());
  worker.reset();
  const v1::JobReport report =
      AwaitReport(plan, [](const v1::JobReport& report) { return !report.lost_links().empty(); });
  EXPECT_EQ(report.state(), v1::MEMBER_RUNNING);
  EXPECT_EQ(report.lost_links(0), "worker-0");
}

TEST_F(ParameterServerTest, ReleaseDuringARestoreDropsTheJob) {
  TestPlanOptions options = Options();
  options.restore = "jobs/job-7/checkpoints/4";
  const v1::JobPlan plan = MakeTestPlan(options);
  service_.FailNext(
      std::vector<grpc::Status>(10000, {grpc::StatusCode::UNAVAILABLE, "restarting"}));
  Prepare(plan);
  const absl::Time deadline = absl::Now() + kPatience;
  while (service_.calls() == 0 && absl::Now() < deadline) continue;
  EXPECT_EQ(ReportOf(plan)->state(), v1::MEMBER_PREPARING);
  Release(plan);
  EXPECT_TRUE(server_->Report().empty());
}

// The coordinator breaks every attempt after the first of two slices.
TEST_F(ParameterServerTest, ReportsTheProgressOfARestore) {
  const std::vector<float> values = {1, 2};
  const auto bytes = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()), 8);
  v1::ShardSlice slice;
  slice.set_data(bytes.data(), bytes.size());
  slice.set_crc32c(Crc32c(bytes));
  service_.SetSlices({slice});
  service_.FailNext(
      std::vector<grpc::Status>(10000, {grpc::StatusCode::UNAVAILABLE, "restarting"}));
  const v1::JobPlan plan = MakeTestPlan({.parameters = {4}, .restore = "jobs/job-7/checkpoints/4"});
  Prepare(plan);
  const absl::Time deadline = absl::Now() + kPatience;
  while (service_.calls() < 3 && absl::Now() < deadline) continue;

  EXPECT_EQ(ReportOf(plan)->state(), v1::MEMBER_PREPARING);
  EXPECT_EQ(ReportOf(plan)->prepare_progress(), bytes.size());
}

TEST_F(ParameterServerTest, LosingTheCoordinatorDropsAllJobs) {
  const v1::JobPlan plan = MakeTestPlan(Options());
  Prepare(plan);
  AwaitState(plan, v1::MEMBER_PREPARED);
  server_->CoordinatorLost();
  EXPECT_TRUE(server_->Report().empty());
}

}  // namespace
}  // namespace muster::parameter_server_test
