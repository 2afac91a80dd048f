// Parameter servers that hold replicas of each other's shards.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/plan_credentials.h"
#include "lib/shard/testing/fake_member_service.h"
#include "lib/shard/testing/test_plan.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "services/ps/fake_peers.h"
#include "services/ps/parameter_server.h"

namespace muster::replication_test {
namespace {

constexpr int64_t kSteps = 20;
constexpr int kPs = 3;

class ReplicationTest : public testing::Test {
 protected:
  ReplicationTest() {
    for (int i = 0; i < kPs; ++i) {
      servers_.push_back(*ParameterServer::Create(
          {.member = absl::StrCat("ps-", i),
           .threads = 1,
           .memory_bytes = 1 << 20,
           .transport = [this]() -> absl::StatusOr<std::unique_ptr<Transport>> {
             return network_.MakeTransport();
           },
           .coordinator = service_.address(),
           .metrics = &metrics_[i],
           .report_soon =
               [this] {
                 absl::MutexLock lock(&mu_);
                 changed_ = true;
               }}));
      servers_.back()->Describe(hellos_[i]);
    }
  }

  struct Holders {
    int ps;
    int replica = -1;  // -1: none
    bool carries = false;
  };
  v1::JobPlan Plan(uint32_t generation, int64_t first_step, std::vector<Holders> shards,
                   uint64_t job = 8) {
    TestPlanOptions options{.parameters = {300, 70},
                            .workers = 1,
                            .shards = 2,
                            .job_number = job,
                            .generation = generation,
                            .first_step = first_step,
                            .clip_norm = 0.5,
                            .has_program = has_program_};
    options.optimizer.mutable_adamw()->set_learning_rate(0.01);
    v1::JobPlan plan = MakeTestPlan(options);
    plan.mutable_spec()->mutable_resources()->set_ps_replication(job == 8 ? 2 : 1);
    if (generation > 1) plan.set_carries(generation - 1);
    for (size_t i = 0; i < shards.size(); ++i) {
      v1::PlanShard& shard = *plan.mutable_shards(static_cast<int>(i));
      shard.set_member(hellos_[shards[i].ps].member());
      shard.set_thread(0);
      shard.set_address(hellos_[shards[i].ps].addresses(0));
      if (shards[i].replica < 0) continue;
      shard.mutable_backup()->set_member(hellos_[shards[i].replica].member());
      shard.mutable_backup()->set_address(hellos_[shards[i].replica].addresses(0));
      shard.mutable_backup()->set_carries(shards[i].carries);
    }
    return plan;
  }

  // Waits until the ps reports the job in `state`, and returns that report.
  v1::JobReport Await(int ps, v1::MemberJobState state) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (absl::Now() < deadline) {
      const std::vector<v1::JobReport> reports = servers_[ps]->Report();
      if (!reports.empty() && reports[0].state() == state) return reports[0];
      absl::MutexLock lock(&mu_);
      AwaitFor(&mu_, absl::Condition(&changed_), absl::Milliseconds(100));
      changed_ = false;
    }
    ADD_FAILURE() << "ps-" << ps << " does not report " << v1::MemberJobState_Name(state);
    return {};
  }

  void Send(int ps, const v1::JobPlan& plan, v1::Directive directive) {
    directive.set_job(plan.job());
    directive.set_generation(plan.generation());
    servers_[ps]->Handle(directive);
  }

  void Begin(const v1::JobPlan& plan, const std::vector<int>& members) {
    v1::Directive prepare, start;
    *prepare.mutable_prepare()->mutable_plan() = plan;
    start.mutable_start()->set_total_steps(kSteps);
    for (const int ps : members) Send(ps, plan, prepare);
    for (const int ps : members) Await(ps, v1::MEMBER_PREPARED);
    for (const int ps : members) Send(ps, plan, start);
    workers_.clear();
    for (const ShardIndex shard : NumbersBelow<ShardIndex>(plan.shards_size())) {
      workers_.push_back(std::make_unique<FakeWorker>(&network_, PlanOfShard(plan, shard), 0));
      workers_.back()->Greet(plan.shards(ToInt(shard)).address());
    }
  }

  // Returns the values of all chunks. A program has no gradient of some of them.
  std::vector<Values> Train(const v1::JobPlan& plan, int64_t last) {
    std::vector<Values> values(plan.chunks_size());
    for (int64_t step = plan.first_step(); step < last; ++step) {
      for (int chunk = 0; chunk < plan.chunks_size(); ++chunk) {
        FakeWorker& worker = *workers_[plan.chunks(chunk).shard()];
        if (has_program_ && (step + chunk) % 3 == 0) {
          worker.PushNone(step, chunk);
        } else {
          worker.Push(step, chunk, std::sin(static_cast<float>(step + chunk)));
        }
      }
      for (int chunk = 0; chunk < plan.chunks_size(); ++chunk) {
        const FakeWorker::Message answer = workers_[plan.chunks(chunk).shard()]->Receive();
        EXPECT_EQ(answer.header.step, step + 1);
        values[answer.header.chunk] = answer.payload;
      }
    }
    return values;
  }

  void Release(int ps, const v1::JobPlan& plan) {
    v1::Directive release;
    release.mutable_release();
    Send(ps, plan, release);
  }

  v1::JobReport Halt(int ps, const v1::JobPlan& plan) {
    v1::Directive halt;
    halt.mutable_halt();
    Send(ps, plan, halt);
    return Await(ps, v1::MEMBER_HALTED);
  }

  void Save(int ps, const v1::JobPlan& plan, uint64_t id, int64_t step,
            const std::vector<int>& replicas) {
    v1::Directive directive;
    v1::Snapshot& snapshot = *directive.mutable_snapshot();
    snapshot.set_snapshot(id);
    snapshot.set_step(step);
    for (const int shard : replicas) snapshot.add_backups(shard);
    Send(ps, plan, directive);
  }

  void ExpectTheSameBitsWhenOnePsAfterTheOtherDies();

  bool has_program_ = false;
  Metrics metrics_[kPs];
  absl::Mutex mu_;
  bool changed_ ABSL_GUARDED_BY(mu_) = false;
  FakeMemberService service_;
  InProcessNetwork network_;
  v1::Hello hellos_[kPs];
  std::vector<std::unique_ptr<ParameterServer>> servers_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
};

void ReplicationTest::ExpectTheSameBitsWhenOnePsAfterTheOtherDies() {
  const v1::JobPlan alone = Plan(1, 0, {{0}, {1}}, /*job=*/7);
  Begin(alone, {0, 1});
  const std::vector<Values> expected = Train(alone, kSteps);
  Release(0, alone);
  Release(1, alone);

  const v1::JobPlan plan = Plan(1, 0, {{0, 1}, {1, 0}});
  Begin(plan, {0, 1});
  Train(plan, 7);
  servers_[0].reset();
  const v1::JobReport failed = Await(1, v1::MEMBER_FAILED);
  EXPECT_EQ(failed.error().culprit(), "ps-0") << failed.error().message();
  const v1::JobReport held = Halt(1, plan);
  EXPECT_EQ(held.next_step(), 7);
  EXPECT_LE(held.oldest_version(), 6);
  ASSERT_EQ(held.backups_size(), 1);
  EXPECT_EQ(held.backups(0).shard(), 0);
  const int64_t step = held.backups(0).newest_version();  // the last sum may not have arrived
  ASSERT_GE(step, 6);

  // Both shards continue on one thread; a new ps holds their replicas.
  const v1::JobPlan second = Plan(2, step, {{1, 2}, {1, 2}});
  Begin(second, {1, 2});
  Train(second, 13);
  servers_[1].reset();
  Await(2, v1::MEMBER_RUNNING);
  const v1::JobReport filled = Halt(2, second);
  ASSERT_EQ(filled.backups_size(), 2);
  const int64_t common =
      std::min(filled.backups(0).newest_version(), filled.backups(1).newest_version());
  ASSERT_GE(common, 12);

  const v1::JobPlan last = Plan(3, common, {{2}, {2}});
  Begin(last, {2});
  EXPECT_EQ(Train(last, kSteps), expected);
}

TEST_F(ReplicationTest, ReplicasContinueToTheSameBitsWhenOnePsAfterTheOtherDies) {
  ExpectTheSameBitsWhenOnePsAfterTheOtherDies();
}

TEST_F(ReplicationTest, ReplicasOfAProgramsJobContinueToTheSameBitsToo) {
  has_program_ = true;
  ExpectTheSameBitsWhenOnePsAfterTheOtherDies();
}

TEST_F(ReplicationTest, ReplicasAreCarriedOnWithTheirShards) {
  const v1::JobPlan plan = Plan(1, 0, {{0, 1}, {1, 0}});
  Begin(plan, {0, 1});
  Train(plan, 5);
  Halt(0, plan);
  const v1::JobReport held = Halt(1, plan);
  const int64_t step = std::max<int64_t>(4, held.backups(0).oldest_version());
  const v1::JobPlan next = Plan(2, step, {{0, 1, true}, {1, 0, true}});
  Begin(next, {0, 1});
  Train(next, 10);
  servers_[1].reset();
  EXPECT_EQ(Halt(0, next).backups(0).shard(), 1);
}

// If the shard's own ps is lost, the checkpoint gets the values and slots of the replica.
TEST_F(ReplicationTest, HaltedReplicaIsSavedLikeItsShard) {
  const v1::JobPlan plan = Plan(1, 0, {{0, 1}, {1, 0}});
  Begin(plan, {0, 1});
  Train(plan, 5);
  Halt(0, plan);
  const v1::JobReport held = Halt(1, plan);
  ASSERT_EQ(held.backups_size(), 1);
  const int64_t step = held.backups(0).newest_version();
  workers_.clear();

  Save(0, plan, /*id=*/1, step, {});
  Save(1, plan, /*id=*/2, step, {0});
  const std::vector<FakeMemberService::Written> written = service_.AwaitWritten(3);
  ASSERT_EQ(written.size(), 3u);
  std::map<uint64_t, std::string> shard;  // by writer
  for (const auto& stream : written) {
    if (stream.header.shard() != 0) continue;
    EXPECT_EQ(stream.header.step(), step);
    EXPECT_EQ(stream.header.job(), plan.job());
    std::string& all = shard[stream.header.snapshot()];
    all = stream.header.update_state().ShortDebugString();
    for (const v1::ShardSlice& slice : stream.slices) {
      absl::StrAppend(&all, "; chunk ", slice.chunk(), " slot ", slice.slot(), ": ", slice.data());
    }
  }
  EXPECT_EQ(shard.size(), 2u) << "written by its ps and by the ps of its replica";
  EXPECT_EQ(shard[1], shard[2]);
  const v1::JobReport report = Await(1, v1::MEMBER_HALTED);
  EXPECT_EQ(report.backups_size(), 1) << "the replica is still held";
}

TEST_F(ReplicationTest, MissingReplicaIsNotCarriedOn) {
  const v1::JobPlan plan = Plan(1, 0, {{0}, {1}});
  Begin(plan, {0, 1});
  Train(plan, 5);
  Halt(0, plan);
  Halt(1, plan);
  const v1::JobPlan next = Plan(2, 5, {{0, 1, true}, {1}});
  v1::Directive prepare;
  *prepare.mutable_prepare()->mutable_plan() = next;
  Send(1, next, prepare);
  EXPECT_EQ(Await(1, v1::MEMBER_FAILED).error().reason(), "SHARDS_NOT_HELD");
}

}  // namespace
}  // namespace muster::replication_test
