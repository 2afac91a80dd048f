// Tests that a job with logical workers gets the same values on any number of workers. Each rank
// pushes the sum of its node of the sum tree, in random order. The reference is a job without
// logical workers and with one rank, which pushes the sum of the whole tree.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/plan/sum_tree.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/shard/core/plan_check.h"
#include "lib/shard/replication/shard_replica.h"
#include "lib/shard/testing/test_plan.h"

namespace muster::sum_tree_shard_test {
namespace {

using Values = std::vector<float>;

constexpr uint32_t kSeed = 41;
constexpr int64_t kSteps = 6;
// The second parameter is a statistic.
constexpr int64_t kElements[] = {9001, 700, 5};
constexpr int64_t kAllElements = 9001 + 700 + 5;
// The sum of this step overflows along the tree if the job has fp16. In rank order it does not.
constexpr int64_t kOverflow = 2;

struct Mode {
  std::string name;
  v1::Optimizer optimizer;
  v1::Precision precision = v1::FP32;
  double clip_norm = 0;
  bool replicated = false;
};

// Adds arrays along the tree of so many leaves, directly from its definition.
Values TreeSum(absl::Span<const Values> leaves) {
  if (leaves.size() == 1) return leaves[0];
  const size_t left = (leaves.size() + 1) / 2;
  Values sum = TreeSum(leaves.first(left));
  const Values right = TreeSum(leaves.subspan(left));
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += right[i];
  return sum;
}

// The gradients of all parameters, by step and leaf.
using Gradients = std::vector<std::vector<Values>>;

Gradients RandomGradients(const Mode& mode, int leaves) {
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  Gradients gradients(kSteps, std::vector<Values>(leaves, Values(kAllElements)));
  for (std::vector<Values>& of_step : gradients) {
    for (Values& leaf : of_step) {
      for (float& element : leaf) element = normal(random) * std::exp(normal(random));
    }
  }
  if (mode.precision == v1::FP16) {
    std::vector<Values>& of_step = gradients[kOverflow];
    of_step[leaves - 3][0] = -2e38f;
    of_step[leaves - 2][0] = of_step[leaves - 1][0] = 2e38f;
  }
  return gradients;
}

// One shard and, if the mode has one, its replica. The test plays the workers.
class Job {
 public:
  // `logical` is that of the job; 0: its shards add in rank order.
  Job(const Mode& mode, int64_t chunk_bytes, int logical, int workers)
      : mode_(mode), chunk_bytes_(chunk_bytes), logical_(logical) {
    Begin(workers);
  }

  // Trains a step on so many workers. The shard continues in a new generation if the last step had
  // another number of them. Requires: a sum tree of the leaves has so many nodes.
  void Step(int workers, const std::vector<Values>& leaves) {
    if (workers != plan_->workers_size()) Begin(workers);
    const SumNode root = {.leaves = std::ssize(leaves)};
    std::vector<Values> sums;
    for (const SumNode& node : CutNode(root, workers)) {
      sums.push_back(TreeSum(absl::MakeSpan(leaves).subspan(node.first_leaf, node.leaves)));
    }
    std::vector<std::pair<int, int>> pushes;  // chunk, rank
    for (int chunk = 0; chunk < plan_->chunks_size(); ++chunk) {
      for (int rank = 0; rank < workers; ++rank) pushes.emplace_back(chunk, rank);
    }
    std::ranges::shuffle(pushes, random_);
    for (const auto& [chunk, rank] : pushes) {
      Push(chunk, rank, sums[rank]);
      DeliverAll();
    }
    ++step_;
    ASSERT_EQ(shard_->core->lowest_version(), step_);
    if (!mode_.replicated) return;
    ASSERT_EQ(replica_->core->lowest_version(), step_);
    ASSERT_EQ(BitsOf(*replica_->core), BitsOf(*shard_->core)) << "replica, step " << step_;
  }

  std::vector<uint32_t> bits() const { return BitsOf(*shard_->core); }
  const std::vector<int64_t>& skipped() const { return skipped_; }

 private:
  struct Node : ShardOutput {
    Node(Job* job, std::unique_ptr<ParameterShard> made, bool is_replica)
        : job(*job), core(std::move(made)), is_replica(is_replica) {
      core->set_output(this);
    }
    // Drops answers to workers: the test's gradients do not depend on values.
    void SendTo(Rank, const WireHeader& header, absl::Span<const std::byte>,
                Transport::SendDone done) override {
      if (!is_replica) return done(absl::OkStatus());
      EXPECT_EQ(header.kind, MessageKind::kHeld);
      job.messages_.push_back([&to = *job.shard_->core, header] { to.ReplicaHolds(header); });
    }
    void SendToShard(ShardIndex, const WireHeader&, absl::Span<const std::byte>,
                     Transport::SendDone) override {
      ADD_FAILURE() << "there is no other shard";
    }
    void SendToReplica(const WireHeader& header, absl::Span<const std::byte> payload,
                       Transport::SendDone done) override {
      auto kept = std::make_shared<Transport::SendDone>(std::move(done));
      job.messages_.push_back([&to = *job.replica_->core, header, payload, kept] {
        const bool is_state = header.kind == MessageKind::kState;
        const absl::Span<std::byte> place =
            is_state ? to.PlaceReport(header) : to.PlacePush(header).memory;
        ASSERT_EQ(place.size(), payload.size());
        if (!payload.empty()) std::memcpy(place.data(), payload.data(), payload.size());
        if (is_state) {
          to.ReportArrived(header);
        } else {
          EXPECT_EQ(to.PushArrived(header, place, {}), RefusalReason::kNone);
        }
        (*kept)(absl::OkStatus());
      });
    }
    void StepJudged(const StepVerdict& verdict) override {
      if (verdict.skipped) job.skipped_.push_back(verdict.step);
    }
    kernels::OutgoingStores UpdateBegins(int64_t) override {
      return kernels::OutgoingStores::kDirect;
    }
    void UpdateEnds(double) override {}
    void SnapshotTaken(std::shared_ptr<const ShardSnapshot>) override {}
    void SnapshotDeclined(uint64_t, int64_t, v1::SnapshotOutcome, const std::string&) override {}

    Job& job;
    std::unique_ptr<ParameterShard> core;
    const bool is_replica;
  };

  v1::JobPlan PlanOf(int workers) const {
    v1::JobPlan plan = MakeTestPlan({.parameters = {std::begin(kElements), std::end(kElements)},
                                     .chunk_bytes = chunk_bytes_,
                                     .workers = workers,
                                     .has_replicas = mode_.replicated,
                                     .generation = generation_,
                                     .first_step = step_,
                                     .optimizer = mode_.optimizer,
                                     .precision = mode_.precision,
                                     .clip_norm = mode_.clip_norm});
    plan.mutable_graph()->mutable_parameters(1)->set_statistic_momentum(0.1);
    plan.mutable_spec()->mutable_data()->set_batch_size(16);
    plan.mutable_spec()->mutable_resources()->mutable_workers()->set_logical(logical_);
    return plan;
  }

  // Begins a generation: with initial values, or with those of the shard of the last one. A new
  // replica gets the values from its shard.
  void Begin(int workers) {
    ++generation_;
    plan_ = std::make_shared<v1::JobPlan>(PlanOf(workers));
    ASSERT_EQ(CheckPlan(*plan_), absl::OkStatus());
    std::unique_ptr<ParameterShard> made;
    if (shard_ == nullptr) {
      made = Make(plan_);
      for (const LocalChunk chunk : made->chunks()) made->Initialize(chunk);
    } else {
      made = Continued();
    }
    shard_ = std::make_unique<Node>(this, std::move(made), /*is_replica=*/false);
    shard_->core->Start(kSteps);
    if (!mode_.replicated) return;
    auto view = std::make_shared<v1::JobPlan>(PlanOfReplica(*plan_, kFirstShard));
    replica_ = std::make_unique<Node>(this, Make(std::move(view)), /*is_replica=*/true);
    replica_->core->Start(kSteps);
    shard_->core->ReplicaConnected();
    DeliverAll();
  }

  std::unique_ptr<ParameterShard> Make(std::shared_ptr<const v1::JobPlan> plan) {
    auto reservation = Reserve(ParameterShard::BytesNeeded(*plan, kFirstShard));
    return *ParameterShard::Create(std::move(plan), kFirstShard, std::move(reservation));
  }

  // Ends the present generation, and returns its shard for the plan's.
  std::unique_ptr<ParameterShard> Continued() {
    shard_->core->Retire();
    if (replica_ != nullptr) replica_->core->Retire();
    DeliverAll();
    return *ParameterShard::Continue(
        plan_, std::move(shard_->core),
        Reserve(ParameterShard::GradientBytesNeeded(*plan_, kFirstShard)));
  }

  std::shared_ptr<MemoryBudget::Reservation> Reserve(int64_t bytes) {
    return *budget_.Reserve(bytes, absl::ZeroDuration());
  }

  // Pushes the chunk's part of the gradients of all parameters.
  void Push(int chunk, int rank, const Values& gradients) {
    const v1::PlanChunk& pushed = plan_->chunks(chunk);
    int64_t from = pushed.offset();
    for (int parameter = 0; parameter < pushed.parameter(); ++parameter) {
      from += kElements[parameter];
    }
    const WireHeader header = PushHeader(*plan_, step_, chunk, rank);
    const absl::Span<std::byte> place = shard_->core->PlacePush(header).memory;
    ASSERT_EQ(place.size(), pushed.elements() * sizeof(float));
    std::memcpy(place.data(), gradients.data() + from, place.size());
    EXPECT_EQ(shard_->core->PushArrived(header, place, {}), RefusalReason::kNone);
  }

  void DeliverAll() {
    while (!messages_.empty()) {
      const auto deliver = std::move(messages_.front());
      messages_.pop_front();
      deliver();
    }
  }

  static std::vector<uint32_t> BitsOf(const ParameterShard& shard) {
    std::vector<uint32_t> bits;
    for (const LocalChunk chunk : shard.chunks()) {
      for (const float value : shard.values(chunk)) bits.push_back(std::bit_cast<uint32_t>(value));
    }
    return bits;
  }

  const Mode mode_;
  const int64_t chunk_bytes_;
  const int logical_;
  std::mt19937 random_{kSeed};
  MemoryBudget budget_{int64_t{1} << 30};
  std::shared_ptr<const v1::JobPlan> plan_;
  std::unique_ptr<Node> shard_, replica_;
  std::deque<std::function<void()>> messages_;  // between shard and replica, in order
  uint32_t generation_ = 0;
  int64_t step_ = 0;
  std::vector<int64_t> skipped_;  // steps
};

class SumTreeShardTest : public testing::TestWithParam<Mode> {};

TEST_P(SumTreeShardTest, ValuesHaveTheSameBitsOnAnyNumberOfWorkers) {
  const Mode& mode = GetParam();
  for (const int leaves : {8, 11}) {
    const Gradients gradients = RandomGradients(mode, leaves);
    for (const int64_t chunk_bytes : {1024, 10'004, 1 << 20}) {
      const auto run = [&](int logical, const std::vector<int>& workers) {
        Job job(mode, chunk_bytes, logical, workers[0]);
        for (int64_t step = 0; step < kSteps; ++step) {
          job.Step(workers[step % workers.size()], gradients[step]);
        }
        return std::pair(job.bits(), job.skipped());
      };
      const auto where = [&](const auto& workers) {
        return absl::StrCat(workers, " workers, ", leaves, " leaves, chunks of ", chunk_bytes,
                            " bytes, seed ", kSeed);
      };
      const auto expected = run(/*logical=*/0, {1});
      const bool overflows = mode.precision == v1::FP16;
      EXPECT_EQ(expected.second, (overflows ? std::vector{kOverflow} : std::vector<int64_t>()));
      for (const int workers : {1, 2, 3, 4, 5, 8}) {
        EXPECT_TRUE(run(leaves, {workers}) == expected) << where(workers);
        // Rank order is the tree's order for up to two ranks, and for some cuts into three.
        if (workers > 3) {
          EXPECT_TRUE(run(/*logical=*/0, {workers}) != expected) << where(workers);
        }
      }
      EXPECT_TRUE(run(leaves, {8, 3, 1, 5, 2, 4}) == expected) << where("8, 3, 1, 5, 2 and 4");
    }
  }
}

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

INSTANTIATE_TEST_SUITE_P(
    Modes, SumTreeShardTest,
    testing::Values(Mode{.name = "Plain", .optimizer = TestPlanOptions::PlainSgd(0.5)},
                    Mode{.name = "Adamw", .optimizer = Adamw()},
                    Mode{.name = "Fp16", .optimizer = Adamw(), .precision = v1::FP16},
                    Mode{.name = "Lamb", .optimizer = Lamb()},
                    Mode{.name = "Clipped", .optimizer = Adamw(), .clip_norm = 1},
                    Mode{.name = "Replicated", .optimizer = Adamw(), .replicated = true},
                    Mode{.name = "ReplicatedClipped",
                         .optimizer = Adamw(),
                         .clip_norm = 1,
                         .replicated = true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace muster::sum_tree_shard_test
