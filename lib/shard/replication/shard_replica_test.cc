// Tests shards and their replicas. The test delivers the messages between them.
#include "lib/shard/replication/shard_replica.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/chunks/plan_credentials.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/shard/core/plan_check.h"
#include "lib/shard/testing/test_plan.h"

namespace muster::shard_replica_test {
namespace {

using Values = std::vector<float>;

constexpr int kShards = 2;
constexpr int64_t kSteps = 12;

v1::JobPlan Plan(TestPlanOptions options) {
  options.parameters = {300, 70, 5};
  options.chunk_bytes = 256;
  options.shards = kShards;
  options.has_replicas = true;
  return MakeTestPlan(options);
}

// Messages to one shard or replica, in order.
using Messages = std::deque<std::function<void()>>;

// A job with its shards and their replicas. The test plays the workers.
class ReplicatedJob {
 public:
  explicit ReplicatedJob(const v1::JobPlan& plan, bool connected = true)
      : plan_(std::make_shared<v1::JobPlan>(plan)) {
    EXPECT_TRUE(CheckPlan(plan).ok()) << CheckPlan(plan);
    for (const ShardIndex number : NumbersBelow<ShardIndex>(kShards)) {
      Add(Make(plan_, number), /*is_replica=*/false);
      Add(Make(std::make_shared<v1::JobPlan>(PlanOfReplica(plan, number)), number),
          /*is_replica=*/true);
    }
    Start(connected);
  }

  // Continues with these copies of the shards and with new replicas.
  ReplicatedJob(const v1::JobPlan& plan, std::vector<std::unique_ptr<ParameterShard>> held)
      : plan_(std::make_shared<v1::JobPlan>(plan)) {
    for (const ShardIndex number : NumbersBelow<ShardIndex>(kShards)) {
      auto next =
          ParameterShard::Continue(plan_, std::move(held[ToInt(number)]), Reserve(plan, number));
      EXPECT_TRUE(next.ok()) << next.status();
      Add(*std::move(next), /*is_replica=*/false);
      Add(Make(std::make_shared<v1::JobPlan>(PlanOfReplica(plan, number)), number),
          /*is_replica=*/true);
    }
    Start(/*connected=*/true);
  }

  void Connect(ShardIndex shard) { primary(shard).ReplicaConnected(); }

  ParameterShard& primary(ShardIndex shard) { return *nodes_[2 * ToInt(shard)]->shard; }
  ParameterShard& replica(ShardIndex shard) { return *nodes_[2 * ToInt(shard) + 1]->shard; }
  Messages& to_replica(ShardIndex shard) { return nodes_[2 * ToInt(shard) + 1]->inbox; }
  std::deque<Messages*> inboxes() {
    std::deque<Messages*> all;
    for (auto& node : nodes_) all.push_back(&node->inbox);
    return all;
  }

  static bool DeliverOne(Messages& inbox) {
    if (inbox.empty()) return false;
    auto message = std::move(inbox.front());
    inbox.pop_front();
    message();
    return true;
  }
  // Delivers until nothing is under way, except messages to `but`.
  void DeliverAll(const Messages* but = nullptr) {
    for (bool any = true; std::exchange(any, false);) {
      for (Messages* inbox : inboxes()) {
        while (inbox != but && DeliverOne(*inbox)) any = true;
      }
    }
  }

  // Pushes every rank's gradient of `step` for the chunk; with `broken`, chunk 0 gets a NaN. Some
  // ranks of a job with a program have no gradient, and for some chunks no rank has one.
  void Push(int64_t step, int chunk, bool broken = false) {
    ParameterShard& shard = primary(ShardIndex(plan_->chunks(chunk).shard()));
    const bool has_program = plan_->spec().model().has_external();
    std::mt19937 random(static_cast<uint32_t>(100 * step + chunk));
    const bool gets_nan = broken && chunk == 0;
    const bool some_have_none = has_program && !gets_nan && random() % 2 == 0;
    const bool all_have_none = some_have_none && random() % 2 == 0;
    for (int rank = 0; rank < plan_->workers_size(); ++rank) {
      WireHeader header = PushHeader(*plan_, step, chunk, rank);
      if (has_program) {
        header.scalar = 0.01 * static_cast<double>(1 + step);
        header.loss_scale = 0.3f + 0.1f * static_cast<float>(rank);
      }
      if (all_have_none || (some_have_none && random() % 2 == 0)) {
        header.dtype = WireDType::kNone;
        header.length = 0;
        ASSERT_TRUE(shard.PlacePush(header).taken);
        EXPECT_EQ(shard.PushArrived(header, {}, {}), RefusalReason::kNone);
        continue;
      }
      const auto placement = shard.PlacePush(header);
      ASSERT_FALSE(placement.memory.empty()) << "step " << step << ", chunk " << chunk;
      Values gradient;
      for (int64_t i = 0; i < plan_->chunks(chunk).elements(); ++i) {
        gradient.push_back(std::sin(static_cast<float>(3 * step + 7 * rank + 11 * chunk) +
                                    0.37f * static_cast<float>(i)));
      }
      if (gets_nan) gradient[0] = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(placement.memory.data(), gradient.data(), placement.memory.size());
      EXPECT_EQ(shard.PushArrived(header, placement.memory, {}), RefusalReason::kNone);
    }
  }
  void PushStep(int64_t step, bool broken = false) {
    for (int chunk = 0; chunk < plan_->chunks_size(); ++chunk) Push(step, chunk, broken);
  }
  void Step(int64_t step, bool broken = false) {
    PushStep(step, broken);
    DeliverAll();
    EXPECT_EQ(version(), step + 1);
  }

  int64_t version() {
    return std::min(primary(ShardIndex(0)).lowest_version(),
                    primary(ShardIndex(1)).lowest_version());
  }

  static std::vector<Values> ValuesOf(const ParameterShard& shard) {
    std::vector<Values> values;
    for (const LocalChunk chunk : shard.chunks()) {
      const absl::Span<const float> of_chunk = shard.values(chunk);
      values.emplace_back(of_chunk.begin(), of_chunk.end());
    }
    return values;
  }
  std::vector<std::vector<Values>> AllValues() {
    return {ValuesOf(primary(ShardIndex(0))), ValuesOf(primary(ShardIndex(1)))};
  }
  void ExpectReplicasAreTheSame() {
    for (const ShardIndex shard : NumbersBelow<ShardIndex>(kShards)) {
      EXPECT_EQ(replica(shard).lowest_version(), primary(shard).lowest_version());
      EXPECT_EQ(ValuesOf(replica(shard)), ValuesOf(primary(shard))) << "shard " << shard;
    }
  }

  // Stops all shards, as a halted generation does, and returns one of them.
  std::unique_ptr<ParameterShard> Take(ShardIndex shard, bool the_replica) {
    for (auto& node : nodes_) {
      if (node->shard != nullptr) node->shard->Retire();
      node->stopped = true;
    }
    DeliverAll();
    auto& taken = nodes_[2 * ToInt(shard) + (the_replica ? 1 : 0)]->shard;
    EXPECT_TRUE(taken->idle());
    return std::move(taken);
  }

  const std::vector<StepVerdict>& verdicts() const { return verdicts_; }
  const v1::JobPlan& plan() const { return *plan_; }

 private:
  struct Node : ShardOutput {
    Node(ReplicatedJob* job, std::unique_ptr<ParameterShard> owned, bool is_replica)
        : job(job), shard(std::move(owned)), is_replica(is_replica) {
      shard->set_output(this);
    }
    // Drops answers to workers: the test's gradients do not depend on values.
    void SendTo(Rank, const WireHeader& header, absl::Span<const std::byte> payload,
                Transport::SendDone done) override {
      if (!is_replica) return done(absl::OkStatus());
      EXPECT_EQ(header.kind, MessageKind::kHeld);
      EXPECT_TRUE(payload.empty());
      Node& primary = *job->nodes_[2 * ToInt(shard->shard())];
      primary.inbox.push_back([&primary, header] {
        if (!primary.stopped) primary.shard->ReplicaHolds(header);
      });
    }
    void SendToShard(ShardIndex to, const WireHeader& header, absl::Span<const std::byte> payload,
                     Transport::SendDone done) override {
      Node& other = *job->nodes_[2 * ToInt(to)];
      std::vector<std::byte> bytes(payload.begin(), payload.end());
      if (done) done(absl::OkStatus());
      other.inbox.push_back([&other, header, bytes = std::move(bytes)] {
        if (other.stopped) return;
        if (header.kind == MessageKind::kHeld) return other.shard->ReplicasHold(header);
        if (header.kind == MessageKind::kVerdict) {
          EXPECT_EQ(other.shard->DecisionArrived(header, {}), RefusalReason::kNone);
          return;
        }
        const absl::Span<std::byte> place = other.shard->PlaceReport(header);
        ASSERT_EQ(place.size(), bytes.size());
        std::memcpy(place.data(), bytes.data(), bytes.size());
        other.shard->ReportArrived(header);
      });
    }
    // Reads the payload at delivery, as a receiver does that reads in place. This exposes memory
    // that was overwritten too early.
    void SendToReplica(const WireHeader& header, absl::Span<const std::byte> payload,
                       Transport::SendDone done) override {
      Node& other = *job->nodes_[2 * ToInt(shard->shard()) + 1];
      auto kept = std::make_shared<Transport::SendDone>(std::move(done));
      other.inbox.push_back([&other, header, payload, kept] {
        if (!other.stopped) other.Receive(header, payload);
        (*kept)(absl::OkStatus());
      });
    }
    void Receive(const WireHeader& header, absl::Span<const std::byte> payload) {
      if (header.kind == MessageKind::kState) {
        const absl::Span<std::byte> place = shard->PlaceReport(header);
        ASSERT_EQ(place.size(), payload.size());
        std::memcpy(place.data(), payload.data(), payload.size());
        return shard->ReportArrived(header);
      }
      const auto placement = shard->PlacePush(header);
      ASSERT_TRUE(placement.taken);
      ASSERT_EQ(placement.memory.size(), payload.size());
      if (!payload.empty()) std::memcpy(placement.memory.data(), payload.data(), payload.size());
      EXPECT_EQ(shard->PushArrived(header, placement.memory, {}), RefusalReason::kNone);
    }
    void StepJudged(const StepVerdict& verdict) override {
      if (shard->shard() == kFirstShard) job->verdicts_.push_back(verdict);
    }
    kernels::OutgoingStores UpdateBegins(int64_t) override {
      return kernels::OutgoingStores::kDirect;
    }
    void UpdateEnds(double) override {}
    void SnapshotTaken(std::shared_ptr<const ShardSnapshot>) override {
      EXPECT_FALSE(is_replica) << "no snapshot is requested of a replica";
    }
    void SnapshotDeclined(uint64_t, int64_t, v1::SnapshotOutcome, const std::string&) override {}

    ReplicatedJob* const job;
    std::unique_ptr<ParameterShard> shard;
    const bool is_replica;
    bool stopped = false;
    Messages inbox;
  };

  std::shared_ptr<MemoryBudget::Reservation> Reserve(const v1::JobPlan& plan, ShardIndex number) {
    return *budget_.Reserve(ParameterShard::BytesNeeded(plan, number), absl::ZeroDuration());
  }
  // Makes a shard with initial values, or a replica, which has none.
  std::unique_ptr<ParameterShard> Make(std::shared_ptr<const v1::JobPlan> plan, ShardIndex number) {
    auto reservation = Reserve(*plan, number);
    auto shard = *ParameterShard::Create(plan, number, std::move(reservation));
    if (IsOfReplica(*plan)) return shard;
    for (const LocalChunk chunk : shard->chunks()) shard->Initialize(chunk);
    return shard;
  }
  void Add(std::unique_ptr<ParameterShard> shard, bool is_replica) {
    nodes_.push_back(std::make_unique<Node>(this, std::move(shard), is_replica));
  }
  void Start(bool connected) {
    for (auto& node : nodes_) node->shard->Start(kSteps);
    for (const ShardIndex shard : NumbersBelow<ShardIndex>(kShards)) {
      if (connected) Connect(shard);
    }
  }

  static inline MemoryBudget budget_{int64_t{1} << 30};
  const std::shared_ptr<const v1::JobPlan> plan_;
  std::vector<std::unique_ptr<Node>> nodes_;  // each shard, then its replica
  std::vector<StepVerdict> verdicts_;
};

v1::Optimizer Adamw() {
  v1::Optimizer optimizer;
  optimizer.mutable_adamw()->set_learning_rate(0.01);
  optimizer.mutable_adamw()->set_weight_decay(0.1);
  return optimizer;
}

v1::Optimizer Lamb() {
  v1::Optimizer optimizer;
  optimizer.mutable_lamb()->set_learning_rate(0.01);
  return optimizer;
}

// Promotes a replica in the middle of the job, and expects the same bits as in an undisturbed job.
// This compares everything that the replica holds, slots and counts included.
void ExpectPromotedReplicasGoOnAlike(const v1::JobPlan& plan, int broken_step = -1) {
  ReplicatedJob undisturbed(plan), job(plan);
  for (int64_t step = 0; step < kSteps; ++step) undisturbed.Step(step, step == broken_step);
  int64_t step = 0;
  for (; step < kSteps / 2; ++step) job.Step(step, step == broken_step);
  job.ExpectReplicasAreTheSame();
  std::vector<std::unique_ptr<ParameterShard>> held;
  held.push_back(job.Take(ShardIndex(0), /*the_replica=*/true));
  held.push_back(job.Take(ShardIndex(1), /*the_replica=*/false));
  v1::JobPlan next = plan;
  next.set_generation(2);
  next.set_first_step(step);
  ReplicatedJob promoted(next, std::move(held));
  for (; step < kSteps; ++step) promoted.Step(step, step == broken_step);
  EXPECT_EQ(promoted.AllValues(), undisturbed.AllValues());
  promoted.ExpectReplicasAreTheSame();
}

TEST(ShardReplicaTest, PromotedReplicaContinuesToTheSameBits) {
  ExpectPromotedReplicasGoOnAlike(Plan({.optimizer = Adamw()}));
}

TEST(ShardReplicaTest, StepsChangeTheValues) {
  ReplicatedJob job(Plan({.optimizer = Adamw()}));
  const auto before = job.AllValues();
  job.Step(0);
  EXPECT_NE(job.AllValues(), before);
}

TEST(ShardReplicaTest, ReplicaFollowsTheVerdictsOfJudgedSteps) {
  const v1::JobPlan plan = Plan({.optimizer = Adamw(), .precision = v1::FP16, .clip_norm = 0.5});
  ExpectPromotedReplicasGoOnAlike(plan, /*broken_step=*/2);
  ReplicatedJob job(plan);
  for (int64_t step = 0; step < 4; ++step) job.Step(step, step == 2);
  ASSERT_EQ(job.verdicts().size(), 4u);
  EXPECT_TRUE(job.verdicts()[2].skipped);
  EXPECT_LT(job.verdicts()[3].loss_scale, job.verdicts()[1].loss_scale);
}

TEST(ShardReplicaTest, ReplicaFollowsTrustRatios) {
  ExpectPromotedReplicasGoOnAlike(Plan({.optimizer = Lamb(), .clip_norm = 0.5}));
}

TEST(ShardReplicaTest, ReplicaFollowsThePushesOfAProgram) {
  for (const double clip_norm : {0.0, 0.5}) {  // judged or not
    SCOPED_TRACE(clip_norm);
    v1::JobPlan plan = Plan({.weight_decay = true,
                             .workers = 3,
                             .optimizer = Adamw(),
                             .clip_norm = clip_norm,
                             .has_program = true});
    plan.mutable_graph()->mutable_parameters(1)->set_statistic_momentum(1);
    ExpectPromotedReplicasGoOnAlike(plan, clip_norm > 0 ? 2 : -1);
    ReplicatedJob job(plan);
    for (int64_t step = 0; step < kSteps; ++step) {
      job.Step(step, clip_norm > 0 && step == 2);
      job.ExpectReplicasAreTheSame();
    }
    if (clip_norm == 0) continue;
    for (int64_t step = 0; step < kSteps; ++step) {
      EXPECT_EQ(job.verdicts()[step].skipped, step == 2) << step;
    }
  }
}

TEST(ShardReplicaTest, AnswersDoNotWaitForReplicasButTheStepAfterNextDoes) {
  ReplicatedJob job(Plan({.optimizer = Adamw()}));
  job.DeliverAll();
  Messages& held_up = job.to_replica(ShardIndex(1));
  job.PushStep(0);
  job.DeliverAll(&held_up);
  EXPECT_EQ(job.version(), 1);
  EXPECT_EQ(job.replica(ShardIndex(0)).lowest_version(), 1);
  EXPECT_EQ(job.replica(ShardIndex(1)).lowest_version(), 0);
  job.PushStep(1);
  job.DeliverAll(&held_up);
  EXPECT_EQ(job.primary(ShardIndex(0)).lowest_version(), 1)
      << "the other shard could not step back to version 0";
  EXPECT_EQ(job.primary(ShardIndex(1)).lowest_version(), 1);
  job.DeliverAll();
  EXPECT_EQ(job.version(), 2);
  job.ExpectReplicasAreTheSame();
}

TEST(ShardReplicaTest, ReplicaIsFilledDuringTheFirstStep) {
  ReplicatedJob job(Plan({.optimizer = Adamw()}), /*connected=*/false);
  job.PushStep(0);
  job.DeliverAll();
  EXPECT_EQ(job.version(), 1);
  job.PushStep(1);
  job.DeliverAll();
  EXPECT_EQ(job.version(), 1) << "version 2 would overwrite what the replica is filled from";
  job.Connect(ShardIndex(0));
  job.DeliverAll();
  EXPECT_EQ(job.version(), 1);
  job.Connect(ShardIndex(1));
  job.DeliverAll();
  EXPECT_EQ(job.version(), 2);
  job.ExpectReplicasAreTheSame();
}

TEST(ShardReplicaTest, IncompleteReplicaHoldsNoVersion) {
  ReplicatedJob job(Plan({.optimizer = Adamw()}));
  ReplicatedJob::DeliverOne(job.to_replica(ShardIndex(0)));
  const auto held = job.replica(ShardIndex(0)).held_versions();
  EXPECT_GT(held.oldest, held.newest);
  job.DeliverAll();
  EXPECT_EQ(job.replica(ShardIndex(0)).held_versions().newest, 0);
}

TEST(ShardReplicaTest, SurvivorsShareAVersionWhateverIsLateAndWhicheverDies) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    ReplicatedJob job(Plan({.optimizer = Adamw()}));
    job.DeliverAll();
    // Workers push a chunk's gradient once all chunks have the step's version.
    const int chunks = job.plan().chunks_size();
    int pushed = 0;
    const int moves = static_cast<int>(random() % 600);
    for (int move = 0; move < moves; ++move) {
      const bool may_push = pushed < chunks * kSteps && job.version() >= pushed / chunks;
      if (may_push && random() % 3 == 0) {
        job.Push(pushed / chunks, pushed % chunks);
        ++pushed;
        continue;
      }
      const auto inboxes = job.inboxes();
      ReplicatedJob::DeliverOne(*inboxes[random() % inboxes.size()]);
    }
    for (int dead = 0; dead <= 4; ++dead) {  // 4: none
      int64_t oldest = 0, newest = std::numeric_limits<int64_t>::max();
      for (int holder = 0; holder < 4; ++holder) {
        if (holder == dead) continue;
        const auto shard = ShardIndex(holder / 2);
        const auto held =
            (holder % 2 == 0 ? job.primary(shard) : job.replica(shard)).held_versions();
        oldest = std::max(oldest, held.oldest);
        newest = std::min(newest, held.newest);
      }
      EXPECT_LE(oldest, newest) << "without holder " << dead;
      EXPECT_GE(newest, job.version() - 1) << "one step is computed again at most";
    }
    job.DeliverAll();
  }
}

TEST(ShardReplicaPlanTest, ReplicaSeesItsShardAsTheOnlyWorker) {
  v1::JobPlan plan = Plan({.workers = 3, .checkpoint_every = 7});
  plan.mutable_spec()->mutable_sync()->mutable_compression()->set_kind(v1::COMPRESSION_INT8);
  const v1::JobPlan view = PlanOfReplica(plan, ShardIndex(1));
  EXPECT_TRUE(IsOfReplica(view));
  EXPECT_FALSE(IsOfReplica(plan));
  ASSERT_EQ(view.workers_size(), 1);
  EXPECT_EQ(view.workers(0).member(), "ps-1");
  EXPECT_EQ(view.spec().checkpoint().every_steps(), 0);
  EXPECT_EQ(view.spec().sync().compression().kind(), v1::COMPRESSION_KIND_UNSPECIFIED);
  EXPECT_EQ(SessionOfReplica(plan, ShardIndex(1)), view.job_number());
  EXPECT_NE(view.job_number(), PlanOfReplica(plan, ShardIndex(0)).job_number());
  EXPECT_NE(view.job_number(), PlanOfShard(plan, ShardIndex(1)).job_number());
  EXPECT_EQ(PlanOfReplica(PlanOfShard(plan, ShardIndex(1)), ShardIndex(1)).job_number(),
            view.job_number())
      << "both sides compute the same number";
}

TEST(ShardReplicaPlanTest, ReplicaOnTheMemberOfItsShardIsRefused) {
  v1::JobPlan plan = Plan({});
  EXPECT_TRUE(CheckPlan(plan).ok());
  plan.mutable_shards(0)->mutable_backup()->set_member("ps-0");
  EXPECT_EQ(CheckPlan(plan).code(), absl::StatusCode::kInvalidArgument);
  plan = Plan({});
  plan.mutable_spec()->mutable_sync()->set_mode(v1::ASP);
  EXPECT_EQ(CheckPlan(plan).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster::shard_replica_test
