// Tests the pushes of jobs with a program: learning rates, weights and pushes without a gradient.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/shard/core/plan_check.h"
#include "lib/shard/testing/test_plan.h"

namespace muster::program_pushes_test {
namespace {

using Values = std::vector<float>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Records the answers and the verdicts. Sends finish at once.
class FakeOutput : public ShardOutput {
 public:
  void SendTo(Rank, const WireHeader& header, absl::Span<const std::byte>,
              Transport::SendDone done) override {
    answers.push_back(header);
    done(absl::OkStatus());
  }
  void SendToShard(ShardIndex, const WireHeader&, absl::Span<const std::byte>,
                   Transport::SendDone) override {
    ADD_FAILURE() << "the job has one shard";
  }
  void StepJudged(const StepVerdict& verdict) override { verdicts.push_back(verdict); }
  kernels::OutgoingStores UpdateBegins(int64_t) override {
    return kernels::OutgoingStores::kDirect;
  }
  void UpdateEnds(double) override { ++updates; }
  void SnapshotTaken(std::shared_ptr<const ShardSnapshot>) override {}
  void SnapshotDeclined(uint64_t, int64_t, v1::SnapshotOutcome, const std::string&) override {}

  std::vector<WireHeader> answers;
  std::vector<StepVerdict> verdicts;
  int updates = 0;
};

// The fields of a push besides its gradient.
struct Terms {
  double learning_rate = 0.5;
  float weight = 1;
};

// A job of one shard.
class Job {
 public:
  explicit Job(const TestPlanOptions& options) : Job(MakeTestPlan(options)) {}
  explicit Job(const v1::JobPlan& plan) : plan_(plan) {
    EXPECT_TRUE(CheckPlan(plan_).ok()) << CheckPlan(plan_);
    shard_ = *ParameterShard::Create(
        std::make_shared<v1::JobPlan>(plan_), kFirstShard,
        *budget_.Reserve(ParameterShard::BytesNeeded(plan_, kFirstShard), absl::ZeroDuration()));
    shard_->set_output(&output_);
    for (const LocalChunk chunk : shard_->chunks()) shard_->Initialize(chunk);
    shard_->Start(/*total_steps=*/100);
  }

  // Pushes `gradient` as it is, without multiplying it by the weight.
  RefusalReason Push(int64_t step, int chunk, int rank, const Values& gradient,
                     std::optional<Terms> terms = std::nullopt) {
    WireHeader header = PushHeader(plan_, step, chunk, rank);
    if (terms) header.scalar = terms->learning_rate;
    if (terms) header.loss_scale = terms->weight;
    return Push(header, gradient);
  }

  // Pushes without a gradient.
  RefusalReason PushNone(int64_t step, int chunk, int rank, Terms terms = {}) {
    WireHeader header = PushHeader(plan_, step, chunk, rank);
    header.dtype = WireDType::kNone;
    header.length = 0;
    header.scalar = terms.learning_rate;
    header.loss_scale = terms.weight;
    return Push(header, {});
  }

  RefusalReason Push(const WireHeader& header, const Values& gradient) {
    const auto placement = shard_->PlacePush(header);
    if (!placement.taken) return placement.refusal;
    EXPECT_EQ(placement.memory.size(), gradient.size() * sizeof(float));
    if (!gradient.empty()) {
      std::memcpy(placement.memory.data(), gradient.data(), placement.memory.size());
    }
    return shard_->PushArrived(header, placement.memory, {});
  }

  Values ValuesOf(int chunk) const {
    const absl::Span<const float> values = shard_->values(LocalChunk(chunk));
    return {values.begin(), values.end()};
  }
  // The sum of squares in the last answer.
  double squares() const { return output_.answers.back().scalar; }

  const v1::JobPlan& plan() const { return plan_; }
  ParameterShard& shard() { return *shard_; }
  FakeOutput& output() { return output_; }

 private:
  MemoryBudget budget_{int64_t{1} << 30};
  const v1::JobPlan plan_;
  std::unique_ptr<ParameterShard> shard_;
  FakeOutput output_;  // destroyed before the shard, as transports are
};

v1::Optimizer Adamw() {
  v1::Optimizer optimizer;
  optimizer.mutable_adamw()->set_learning_rate(0.25);
  optimizer.mutable_adamw()->set_weight_decay(0.5);
  return optimizer;
}

// Compares bits: -0 and 0 differ.
std::vector<uint32_t> BitsOf(const Values& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

Values Times(float factor, Values values) {
  for (float& value : values) value *= factor;
  return values;
}

Values Wavy(int64_t elements, int64_t phase) {
  Values values;
  for (int64_t i = 0; i < elements; ++i) {
    values.push_back(std::sin(0.7f * static_cast<float>(i) + static_cast<float>(phase)));
  }
  return values;
}

TEST(ProgramPushesTest, GradientIsTheMeanWithTheWeightsOfTheRanks) {
  constexpr int64_t kElements = 333;
  for (const auto& [first, second] : {std::pair(1.0f, 3.0f), std::pair(0.3f, 0.9f)}) {
    Job job(TestPlanOptions{.parameters = {kElements}, .chunk_bytes = 4096, .has_program = true});
    const Values gradients[] = {Times(first, Wavy(kElements, 1)),
                                Times(second, Wavy(kElements, 2))};
    Values expected = job.ValuesOf(0);
    const auto factor = static_cast<float>(1 / (double{first} + double{second}));
    double squares = 0;
    for (int64_t i = 0; i < kElements; ++i) {
      const float sum = gradients[0][i] + gradients[1][i];
      const float mean = factor * sum;
      expected[i] -= 0.125f * mean;
      squares += double{mean} * mean;
    }
    job.Push(0, 0, 1, gradients[1], Terms{.learning_rate = 0.125, .weight = second});
    job.Push(0, 0, 0, gradients[0], Terms{.learning_rate = 0.125, .weight = first});
    EXPECT_EQ(BitsOf(job.ValuesOf(0)), BitsOf(expected)) << first << ", " << second;
    EXPECT_NEAR(job.squares(), squares, 1e-4);
  }
}

TEST(ProgramPushesTest, WeightsThatAddUpToOneGiveTheBitsOfAnyOtherJob) {
  for (const double clip_norm : {0.0, 0.5}) {
    TestPlanOptions options{
        .parameters = {300}, .workers = 3, .optimizer = Adamw(), .clip_norm = clip_norm};
    Job plain(options);
    options.has_program = true;
    Job program(options);
    const float weights[] = {0.5f, 0.25f, 0.25f};
    for (int64_t step = 0; step < 5; ++step) {
      for (const int chunk : {0, 1}) {
        for (const int rank : {0, 1, 2}) {
          const Values gradient =
              Wavy(plain.plan().chunks(chunk).elements(), 10 * step + 3 * chunk + rank);
          const Terms terms{.learning_rate = 0.25, .weight = weights[rank]};
          ASSERT_EQ(plain.Push(step, chunk, rank, gradient), RefusalReason::kNone);
          ASSERT_EQ(program.Push(step, chunk, rank, gradient, terms), RefusalReason::kNone);
        }
      }
    }
    for (const int chunk : {0, 1}) {
      EXPECT_EQ(BitsOf(program.ValuesOf(chunk)), BitsOf(plain.ValuesOf(chunk)));
    }
    EXPECT_EQ(program.squares(), plain.squares());
  }
}

TEST(ProgramPushesTest, LearningRateIsThatOfThePushWhateverTheJobFileSays) {
  v1::JobPlan plan = MakeTestPlan({.parameters = {3}, .has_program = true});
  v1::ParameterGroup& group = *plan.mutable_spec()->mutable_training()->add_parameter_groups();
  group.add_match("*");
  group.set_learning_rate_factor(16);
  Job job(plan);
  Values expected = job.ValuesOf(0);
  for (const auto& [step, rate] : {std::pair(0, 0.25f), std::pair(1, 0.0f), std::pair(2, 2.0f)}) {
    for (float& value : expected) value -= rate * 0.5f;
    for (const int rank : {0, 1}) job.Push(step, 0, rank, Values(3, 0.5f), Terms{rate, 1});
    EXPECT_EQ(job.ValuesOf(0), expected) << step;
  }
}

TEST(ProgramPushesTest, RankWithAnotherLearningRateIsRefusedAndMayPushAgain) {
  Job job(TestPlanOptions{.parameters = {3, 3}, .has_program = true});
  EXPECT_EQ(job.Push(0, 0, 1, Values(3, 1.0f), Terms{0.25}), RefusalReason::kNone);
  EXPECT_EQ(job.Push(0, 0, 0, Values(3, 1.0f), Terms{0.125}), RefusalReason::kOtherLearningRate);
  EXPECT_EQ(job.PushNone(0, 0, 0, Terms{0.125}), RefusalReason::kOtherLearningRate);
  EXPECT_EQ(job.output().updates, 0);
  EXPECT_EQ(job.Push(0, 1, 0, Values(3, 1.0f), Terms{0.125}), RefusalReason::kNone)
      << "another chunk may be of another group";
  EXPECT_EQ(job.Push(0, 0, 0, Values(3, 1.0f), Terms{0.25}), RefusalReason::kNone);
  EXPECT_EQ(job.output().updates, 1);
  EXPECT_EQ(job.Push(1, 0, 0, Values(3, 1.0f), Terms{0.125}), RefusalReason::kNone)
      << "another step may have another learning rate";
  EXPECT_TRUE(job.shard().idle());
}

TEST(ProgramPushesTest, RankWithoutAGradientCountsWithItsWeight) {
  for (const double clip_norm : {0.0, 1e9}) {  // judged or not
    for (const int without : {0, 1, 2}) {
      Job job(TestPlanOptions{
          .parameters = {3}, .workers = 3, .clip_norm = clip_norm, .has_program = true});
      Values expected = job.ValuesOf(0);
      for (float& value : expected) value -= 0.5f * (0.25f * 6);
      for (const int rank : {2, 0, 1}) {
        const Terms terms{.weight = rank == without ? 2.0f : 1.0f};
        EXPECT_EQ(rank == without ? job.PushNone(0, 0, rank, terms)
                                  : job.Push(0, 0, rank, Values(3, 3.0f), terms),
                  RefusalReason::kNone);
      }
      EXPECT_EQ(job.ValuesOf(0), expected) << without;
      EXPECT_EQ(job.squares(), 3 * 1.5 * 1.5);
      ASSERT_EQ(job.output().answers.size(), 3u);
    }
  }
}

TEST(ProgramPushesTest, ChunkWithoutAnyGradientGetsItsNextVersionUnchanged) {
  for (const double clip_norm : {0.0, 1e9}) {
    TestPlanOptions options{
        .parameters = {4, 4}, .weight_decay = true, .clip_norm = clip_norm, .has_program = true};
    options.optimizer.mutable_sgd()->set_momentum(0.5);
    options.optimizer.mutable_sgd()->set_weight_decay(0.5);
    Job job(options), without_pause(options);
    // Chunk 1 has gradients in the steps 0 and 2, and in `without_pause` in the steps 0 and 1.
    for (const int64_t step : {0, 1, 2}) {
      for (const int rank : {1, 0}) job.Push(step, 0, rank, Values(4, 1.0f));
      const Values before = job.ValuesOf(1);
      for (const int rank : {0, 1}) {
        if (step == 1) {
          EXPECT_EQ(job.PushNone(step, 1, rank), RefusalReason::kNone);
        } else {
          job.Push(step, 1, rank, Values(4, 1.0f));
        }
      }
      EXPECT_EQ(job.ValuesOf(1) == before, step == 1) << step;
      EXPECT_EQ(job.shard().lowest_version(), step + 1);
      const WireHeader& answer = job.output().answers.back();
      EXPECT_EQ(answer.step, step + 1);
      if (step != 1) continue;
      double squares = 0;
      for (const WireHeader& header : job.output().answers) {
        if (header.step == 2 && header.rank == 0) squares += header.scalar;
      }
      EXPECT_EQ(squares, 4) << "the step's norm is that of chunk 0";
    }
    EXPECT_EQ(job.output().updates, 5);
    for (const StepVerdict& verdict : job.output().verdicts) EXPECT_FALSE(verdict.skipped);
    for (const int64_t step : {0, 1}) {
      for (const int chunk : {0, 1}) {
        for (const int rank : {0, 1}) without_pause.Push(step, chunk, rank, Values(4, 1.0f));
      }
    }
    EXPECT_EQ(job.ValuesOf(1), without_pause.ValuesOf(1)) << "the momentum is unchanged, too";
  }
}

TEST(ProgramPushesTest, JudgedStepClipsTheWeightedMean) {
  // The weights add up to a power of two, so both jobs compute the same bits.
  TestPlanOptions options{.parameters = {4, 5}, .clip_norm = 0.25};
  Job plain(options);
  options.has_program = true;
  Job program(options);
  for (int64_t step = 0; step < 3; ++step) {
    for (const int chunk : {0, 1}) {
      for (const int rank : {1, 0}) {
        const float weight = rank == 0 ? 1 : 3;
        const Values gradient = Times(weight, Wavy(4 + chunk, 5 * step + 2 * chunk + rank));
        program.Push(step, chunk, rank, gradient, Terms{0.5, weight});
        plain.Push(step, chunk, rank, Times(0.25f, gradient));
      }
    }
  }
  EXPECT_EQ(program.squares(), plain.squares());
  for (const int chunk : {0, 1}) {
    EXPECT_EQ(BitsOf(program.ValuesOf(chunk)), BitsOf(plain.ValuesOf(chunk)));
  }
  const Values before = program.ValuesOf(0);
  for (const int rank : {0, 1}) {
    program.PushNone(3, 1, rank);
    program.Push(3, 0, rank, Values(4, rank == 1 ? kNan : 1.0f));
  }
  EXPECT_TRUE(program.output().verdicts.back().skipped);
  EXPECT_EQ(program.ValuesOf(0), before);
}

TEST(ProgramPushesTest, TrustRatioPassesOverAChunkWithoutAGradient) {
  TestPlanOptions options{.parameters = {4, 4}, .weight_decay = true, .has_program = true};
  options.optimizer.mutable_lamb()->set_learning_rate(1);
  Job job(options), all(options);
  const Values before = job.ValuesOf(1);
  for (const int rank : {0, 1}) {
    for (Job* each : {&job, &all}) each->Push(0, 0, rank, Wavy(4, rank));
    job.PushNone(0, 1, rank);
    all.Push(0, 1, rank, Wavy(4, rank));
  }
  EXPECT_EQ(job.ValuesOf(1), before);
  EXPECT_EQ(BitsOf(job.ValuesOf(0)), BitsOf(all.ValuesOf(0)));
  EXPECT_NE(all.ValuesOf(1), before);
}

TEST(ProgramPushesTest, StatisticIsTheMeanOverTheRanksThatHaveIt) {
  v1::JobPlan plan = MakeTestPlan({.parameters = {3, 3}, .clip_norm = 1e-3, .has_program = true});
  plan.mutable_graph()->mutable_parameters(1)->set_statistic_momentum(1);
  Job job(plan);
  for (const int rank : {0, 1}) job.PushNone(0, 0, rank);
  job.Push(0, 1, 0, Values(3, 1 * 5.0f), Terms{0.5, 1});
  job.Push(0, 1, 1, Values(3, 3 * 9.0f), Terms{0.5, 3});
  EXPECT_EQ(job.ValuesOf(1), Values(3, 8.0f));
  for (const int rank : {0, 1}) job.PushNone(1, 0, rank);
  job.PushNone(1, 1, 0, Terms{0.5, 1});
  job.Push(1, 1, 1, Values(3, 3 * 7.0f), Terms{0.5, 3});
  const Values values = job.ValuesOf(1);
  for (const float value : values) EXPECT_NEAR(value, 7, 1e-6);
  for (const int rank : {0, 1}) {
    job.PushNone(2, 0, rank);
    job.PushNone(2, 1, rank);
  }
  EXPECT_EQ(job.ValuesOf(1), values);
  EXPECT_EQ(job.shard().lowest_version(), 3);
}

TEST(ProgramPushesTest, AsynchronousPushHasItsOwnLearningRateAndWeight) {
  for (const v1::SyncMode mode : {v1::SSP, v1::ASP}) {
    TestPlanOptions options{.parameters = {3}, .sync = SyncOf(mode), .has_program = true};
    options.sync.set_staleness(2);
    options.sync.set_staleness_aware(true);
    v1::JobPlan plan = MakeTestPlan(options);
    plan.mutable_workers(1)->set_samples(3);
    Job job(plan);
    Values expected = job.ValuesOf(0);
    for (float& value : expected) value -= 0.25f * 0.125f * 2;  // share 1/4, mean 2
    EXPECT_EQ(job.Push(0, 0, 0, Values(3, 8.0f), Terms{0.125, 4}), RefusalReason::kNone);
    EXPECT_EQ(job.ValuesOf(0), expected);
    for (float& value : expected) value -= 0.75f * 0.5f * 2;
    EXPECT_EQ(job.Push(0, 0, 1, Values(3, 4.0f), Terms{0.5, 2}), RefusalReason::kNone);
    EXPECT_EQ(job.ValuesOf(0), expected);
    EXPECT_EQ(job.squares(), 3 * 2 * 2);
    EXPECT_EQ(job.PushNone(1, 0, 1, Terms{0.25}), RefusalReason::kNone);
    EXPECT_EQ(job.ValuesOf(0), expected);
    EXPECT_EQ(job.squares(), 0);
    EXPECT_EQ(job.output().answers.back().step, 2);
    EXPECT_EQ(job.output().updates, 2);
    // Rank 0 got its value two updates ago: one per rank, so its staleness is 1.
    for (float& value : expected) value -= 0.25f * 0.5f / 2;
    EXPECT_EQ(job.Push(1, 0, 0, Values(3, 1.0f), Terms{0.5, 1}), RefusalReason::kNone);
    EXPECT_EQ(job.ValuesOf(0), expected);
  }
}

TEST(ProgramPushesTest, StepWithBackupWorkersHasTheWeightsOfItsRanks) {
  v1::SyncSpec sync = SyncOf(v1::BSP);
  sync.set_backup_workers(1);
  for (const double clip_norm : {0.0, 1e9}) {  // judged or not
    v1::JobPlan plan = MakeTestPlan({.parameters = {4},
                                     .workers = 3,
                                     .clip_norm = clip_norm,
                                     .sync = sync,
                                     .has_program = true});
    plan.mutable_workers(1)->set_samples(2);  // of no meaning here
    Job job(plan);
    const Values before = job.ValuesOf(0);
    Values expected = before;
    for (float& value : expected) value -= 0.5f * 2;
    const WireHeader late = [&] {
      WireHeader header = PushHeader(job.plan(), 0, 0, 1);
      header.scalar = 0.25;  // differs, and is not part of the step
      return header;
    }();
    const auto placement = job.shard().PlacePush(late);
    ASSERT_TRUE(placement.taken);
    ASSERT_EQ(job.Push(0, 0, 2, Values(4, 5.0f), Terms{0.5, 3}), RefusalReason::kNone);
    ASSERT_EQ(job.Push(0, 0, 0, Values(4, 3.0f), Terms{0.5, 1}), RefusalReason::kNone);
    EXPECT_EQ(job.ValuesOf(0), expected);
    EXPECT_EQ(job.squares(), 4 * 2 * 2);
    EXPECT_EQ(job.shard().PushArrived(late, placement.memory, {}), RefusalReason::kNone);
    EXPECT_EQ(job.shard().late_pushes(), 1);

    ASSERT_EQ(job.PushNone(1, 0, 1), RefusalReason::kNone);
    ASSERT_EQ(job.PushNone(1, 0, 0), RefusalReason::kNone);
    EXPECT_EQ(job.ValuesOf(0), expected);
    EXPECT_EQ(job.output().answers.back().step, 2);
    EXPECT_EQ(job.PushNone(1, 0, 2), RefusalReason::kNone);
    EXPECT_EQ(job.shard().late_pushes(), 2) << "late like any other push";
  }
}

TEST(ProgramPushesTest, RepeatOfAPushWithoutAGradientIsAnsweredAndNotApplied) {
  Job job(TestPlanOptions{.parameters = {3}, .has_program = true});
  WireHeader header = PushHeader(job.plan(), 0, 0, 1);
  header.dtype = WireDType::kNone;
  header.length = 0;
  ASSERT_EQ(job.Push(header, {}), RefusalReason::kNone);
  EXPECT_TRUE(job.shard().PlacePush(header).repeat);
  job.Push(0, 0, 0, Values(3, 1.0f));
  EXPECT_TRUE(job.shard().PlacePush(header).repeat);
  job.shard().AnswerRepeat(header);
  EXPECT_EQ(job.output().answers.size(), 3u);
  EXPECT_EQ(job.output().updates, 1);
}

TEST(ProgramPushesTest, HeaderThatSaysNothingSensibleIsRefused) {
  Job job(TestPlanOptions{.parameters = {3}, .has_program = true});
  for (const double rate : {-0.5, double{kNan}, double{kInfinity}, -double{kInfinity}}) {
    EXPECT_EQ(job.Push(0, 0, 0, Values(3, 1.0f), Terms{rate}), RefusalReason::kBadHeader) << rate;
    EXPECT_EQ(job.PushNone(0, 0, 0, Terms{rate}), RefusalReason::kBadHeader) << rate;
  }
  for (const float weight :
       {0.0f, -1.0f, kNan, kInfinity, std::numeric_limits<float>::denorm_min()}) {
    EXPECT_EQ(job.Push(0, 0, 0, Values(3, 1.0f), Terms{0.5, weight}), RefusalReason::kBadHeader);
    EXPECT_EQ(job.PushNone(0, 0, 0, Terms{0.5, weight}), RefusalReason::kBadHeader) << weight;
  }
  WireHeader header = PushHeader(job.plan(), 0, 0, 0);
  header.dtype = WireDType::kNone;
  EXPECT_EQ(job.Push(header, Values(3)), RefusalReason::kWrongLength);
  header = PushHeader(job.plan(), 0, 0, 0);
  header.length = 0;
  EXPECT_EQ(job.Push(header, {}), RefusalReason::kWrongLength);
  header.codec = WireCodec::kTopK;
  header.dtype = WireDType::kNone;
  EXPECT_EQ(job.Push(header, {}), RefusalReason::kBadHeader);
}

TEST(ProgramPushesTest, OtherJobsMustHaveAGradient) {
  Job job(TestPlanOptions{.parameters = {3}});
  EXPECT_EQ(job.PushNone(0, 0, 0), RefusalReason::kBadHeader);
}

// A push without a gradient is raw, whatever the codec of the others is.
TEST(ProgramPushesTest, RankWithoutAGradientNeedsNoCodec) {
  TestPlanOptions options{.parameters = {640}, .chunk_bytes = 4096, .has_program = true};
  options.sync.mutable_compression()->set_kind(v1::COMPRESSION_TOPK);
  Job job(options);
  const Values before = job.ValuesOf(0);
  for (const int rank : {0, 1}) EXPECT_EQ(job.PushNone(0, 0, rank), RefusalReason::kNone);
  EXPECT_EQ(job.shard().lowest_version(), 1);
  EXPECT_EQ(job.ValuesOf(0), before);
}

}  // namespace
}  // namespace muster::program_pushes_test
