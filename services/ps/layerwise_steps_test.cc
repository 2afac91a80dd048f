// Steps of lamb and lars, which need trust ratios that all shards of a job agree on, and parameter
// groups.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/shard/testing/test_plan.h"
#include "services/ps/fake_peers.h"
#include "services/ps/judged_job.h"

namespace muster::layerwise_steps_test {
namespace {

v1::Optimizer Lamb() {
  v1::Optimizer optimizer;
  optimizer.mutable_lamb()->set_learning_rate(0.02);
  optimizer.mutable_lamb()->set_weight_decay(0.1);
  return optimizer;
}

v1::Optimizer Lars(double momentum) {
  v1::Optimizer optimizer;
  optimizer.mutable_lars()->set_learning_rate(0.5);
  optimizer.mutable_lars()->set_momentum(momentum);
  optimizer.mutable_lars()->set_weight_decay(0.1);
  optimizer.mutable_lars()->set_trust(0.05);
  return optimizer;
}

// Three parameters of several chunks each; the second one has no weight decay.
v1::JobPlan PlanOf(const v1::Optimizer& optimizer, int shards) {
  TestPlanOptions options{.parameters = {700, 150, 333}, .chunk_bytes = 512, .shards = shards};
  options.optimizer = optimizer;
  v1::JobPlan plan = MakeTestPlan(options);
  for (int p : {0, 2}) plan.mutable_graph()->mutable_parameters(p)->set_weight_decay(true);
  return plan;
}

v1::ParameterGroup& AddGroup(v1::JobPlan& plan, const std::string& pattern) {
  v1::ParameterGroup& group = *plan.mutable_spec()->mutable_training()->add_parameter_groups();
  group.add_match(pattern);
  return group;
}

using Doubles = std::vector<double>;

double Norm(const Doubles& x) {
  double squares = 0;
  for (double e : x) squares += e * e;
  return std::sqrt(squares);
}

// A float64 reference of one parameter, written from the papers.
struct Tensor {
  Doubles w, m, v;
  bool decays = false;
  double learning_rate_factor = 1;

  void Step(const v1::Optimizer& optimizer, int64_t step, const Doubles& g) {
    m.resize(w.size());
    v.resize(w.size());
    optimizer.has_lamb() ? LambStep(optimizer.lamb(), step, g) : LarsStep(optimizer.lars(), g);
  }

  void LambStep(const v1::Lamb& lamb, int64_t step, const Doubles& g) {
    const double t = static_cast<double>(step + 1), decay = decays ? lamb.weight_decay() : 0;
    Doubles u(w.size());
    for (size_t i = 0; i < w.size(); ++i) {
      m[i] = 0.9 * m[i] + 0.1 * g[i];
      v[i] = 0.999 * v[i] + 0.001 * g[i] * g[i];
      const double m_hat = m[i] / (1 - std::pow(0.9, t));
      const double v_hat = v[i] / (1 - std::pow(0.999, t));
      u[i] = m_hat / (std::sqrt(v_hat) + 1e-6) + decay * w[i];
    }
    const bool adapts = decays && Norm(w) > 0 && Norm(u) > 0;
    const double ratio = adapts ? Norm(w) / Norm(u) : 1;
    for (size_t i = 0; i < w.size(); ++i) {
      w[i] -= lamb.learning_rate() * learning_rate_factor * ratio * u[i];
    }
  }

  void LarsStep(const v1::Lars& lars, const Doubles& g) {
    const double decay = decays ? lars.weight_decay() : 0;
    const bool adapts = decays && Norm(w) > 0 && Norm(g) > 0;
    const double ratio = adapts ? lars.trust() * Norm(w) / (Norm(g) + decay * Norm(w) + 1e-8) : 1;
    for (size_t i = 0; i < w.size(); ++i) {
      m[i] = lars.momentum() * m[i] + ratio * (g[i] + decay * w[i]);
      w[i] -= lars.learning_rate() * learning_rate_factor * m[i];
    }
  }
};

class Reference {
 public:
  Reference(const v1::JobPlan& plan, const std::vector<Values>& initial) : plan_(plan) {
    for (int p = 0; p < plan.graph().parameters_size(); ++p) {
      tensors_.push_back({.w = Doubles(initial[p].begin(), initial[p].end()),
                          .decays = plan.graph().parameters(p).weight_decay()});
    }
  }

  Tensor& tensor(int p) { return tensors_[p]; }

  void Step(int64_t step, const GradientOf& gradient_of) {
    std::vector<Doubles> gradients;
    Doubles all;
    for (size_t p = 0; p < tensors_.size(); ++p) {
      Doubles& g = gradients.emplace_back(tensors_[p].w.size());
      for (size_t i = 0; i < g.size(); ++i) {
        for (int rank = 0; rank < plan_.workers_size(); ++rank) {
          g[i] += gradient_of(step, rank, static_cast<int>(p), static_cast<int64_t>(i));
        }
      }
      all.insert(all.end(), g.begin(), g.end());
    }
    const v1::Clip& clip = plan_.spec().training().clip();
    for (size_t p = 0; p < tensors_.size(); ++p) {
      for (double& g : gradients[p]) {
        if (clip.has_global_norm()) g *= std::min(1.0, clip.global_norm() / Norm(all));
        if (clip.has_value()) g = std::clamp(g, -clip.value(), clip.value());
      }
      tensors_[p].Step(plan_.spec().training().optimizer(), step, gradients[p]);
    }
  }

 private:
  const v1::JobPlan plan_;
  std::vector<Tensor> tensors_;
};

// Compares with the reference within the rounding error: a float update makes about ten roundings
// of 6e-8 on terms of order 1, over five steps.
void ExpectNear(const std::vector<Values>& values, Reference& reference) {
  for (size_t p = 0; p < values.size(); ++p) {
    for (size_t i = 0; i < values[p].size(); ++i) {
      const double expected = reference.tensor(static_cast<int>(p)).w[i];
      ASSERT_NEAR(values[p][i], expected, 1e-5 * (1 + std::abs(expected)))
          << "parameter " << p << ", element " << i;
    }
  }
}

TEST(LayerwiseStepsTest, LambAndLarsFollowFloat64ReferencesWithEveryClipOnAnyNumberOfShards) {
  for (const v1::Optimizer& optimizer : {Lamb(), Lars(0), Lars(0.9)}) {
    for (int shards : {1, 3}) {
      for (const char* clip : {"none", "norm", "value"}) {
        SCOPED_TRACE(optimizer.ShortDebugString() + ", clip " + clip);
        v1::JobPlan plan = PlanOf(optimizer, shards);
        v1::TrainingSpec& training = *plan.mutable_spec()->mutable_training();
        if (clip == std::string("norm")) training.mutable_clip()->set_global_norm(3);
        if (clip == std::string("value")) training.mutable_clip()->set_value(0.7);
        JudgedJob job(plan);
        Reference reference(plan, job.Fetch(0));
        for (int64_t step = 0; step < 5; ++step) {
          job.Step(step, Wavy);
          reference.Step(step, Wavy);
          ExpectNear(job.values(), reference);
        }
      }
    }
  }
}

TEST(LayerwiseStepsTest, NumberOfShardsDoesNotChangeABit) {
  for (const v1::Optimizer& optimizer : {Lamb(), Lars(0.9)}) {
    std::vector<Values> expected;
    for (int shards : {1, 2, 3, 30}) {  // more shards than chunks
      v1::JobPlan plan = PlanOf(optimizer, shards);
      plan.mutable_spec()->mutable_training()->mutable_clip()->set_global_norm(3);
      JudgedJob job(plan);
      for (int64_t step = 0; step < 5; ++step) job.Step(step, Wavy);
      if (expected.empty()) expected = job.values();
      EXPECT_EQ(job.values(), expected) << shards;
    }
  }
}

TEST(LayerwiseStepsTest, TensorOfZerosMovesAsWithoutARatio) {
  for (const v1::Optimizer& optimizer : {Lamb(), Lars(0)}) {
    v1::JobPlan plan = PlanOf(optimizer, 2);
    plan.mutable_graph()->mutable_parameters(0)->mutable_initializer()->set_constant(0);
    JudgedJob job(plan);
    Reference reference(plan, job.Fetch(0));
    EXPECT_EQ(job.values()[0][0], 0);
    job.Step(0, Wavy);
    reference.Step(0, Wavy);
    ExpectNear(job.values(), reference);
    EXPECT_NE(job.values()[0][0], 0);
  }
}

TEST(LayerwiseStepsTest, OverflowIsSkippedBeforeAnyNormIsComputed) {
  for (const v1::Precision precision : {v1::FP32, v1::FP16}) {
    v1::JobPlan plan = PlanOf(Lamb(), 3);
    plan.mutable_spec()->mutable_training()->set_precision(precision);
    plan.mutable_spec()->mutable_training()->mutable_loss_scale()->set_initial(1024);
    plan.mutable_spec()->mutable_training()->mutable_loss_scale()->set_growth_steps(100);
    JudgedJob job(plan), without(plan);
    int64_t applied = 0;
    for (int64_t step = 0; step < 6; ++step) {
      if (step == 0 || step == 3) {  // the first step too
        const std::vector<Values> before = step == 0 ? job.Fetch(0) : job.values();
        job.Step(step, [](int64_t s, int rank, int p, int64_t i) {
          return p == 1 && i == 77 ? std::numeric_limits<float>::infinity() : Wavy(s, rank, p, i);
        });
        EXPECT_EQ(job.values(), before);
        continue;
      }
      job.Step(step, Wavy);
      without.Step(applied++,
                   [&](int64_t, int rank, int p, int64_t i) { return Wavy(step, rank, p, i); });
      EXPECT_EQ(job.values(), without.values()) << step;
    }
    EXPECT_EQ(job.skipped(), 2);
    EXPECT_EQ(job.loss_scale(), precision == v1::FP16 ? 256 : 0);
  }
}

TEST(LayerwiseStepsTest, GroupsChangeRateAndDecay) {
  v1::JobPlan plan = PlanOf(Lamb(), 2);
  AddGroup(plan, "p0").set_weight_decay(false);
  v1::ParameterGroup& others = AddGroup(plan, "p?");
  others.set_weight_decay(true);
  others.set_learning_rate_factor(0.25);
  JudgedJob job(plan);
  Reference reference(plan, job.Fetch(0));
  reference.tensor(0).decays = false;
  for (int p : {1, 2}) {
    reference.tensor(p).decays = true;
    reference.tensor(p).learning_rate_factor = 0.25;
  }
  for (int64_t step = 0; step < 3; ++step) {
    job.Step(step, Wavy);
    reference.Step(step, Wavy);
  }
  ExpectNear(job.values(), reference);
}

// The largest parameter is the frozen one, so with as many shards as chunks some shards have only
// frozen chunks.
TEST(LayerwiseStepsTest, FrozenParametersStayAndAreNotInNorms) {
  for (int shards : {1, 3, 12}) {
    for (v1::Optimizer optimizer : {Lamb(), TestPlanOptions::PlainSgd(0.5)}) {
      v1::JobPlan plan = PlanOf(optimizer, shards);
      plan.mutable_spec()->mutable_training()->mutable_clip()->set_global_norm(3);
      AddGroup(plan, "p0").set_frozen(true);
      JudgedJob job(plan);
      const Values frozen = job.Fetch(0)[0];
      double squares = 0;
      for (int p : {1, 2}) {
        for (int64_t i = 0; i < plan.graph().parameters(p).shape(0); ++i) {
          const double g = double{Wavy(0, 0, p, i)} + double{Wavy(0, 1, p, i)};
          squares += g * g;
        }
      }
      job.Step(0, Wavy);
      EXPECT_NEAR(job.squares(), squares, 1e-6 * squares);
      const std::vector<Values> after_one = job.values();
      job.Step(1, Wavy);
      EXPECT_NE(job.values()[1], after_one[1]);
      const std::vector<Values> trained = job.values();
      EXPECT_EQ(job.Fetch(2)[0], frozen);
      EXPECT_EQ(job.values()[1], trained[1]);
      EXPECT_EQ(job.values()[2], trained[2]);
    }
  }
}

TEST(LayerwiseStepsTest, WorkerThatImpersonatesAShardIsCutOffAndChangesNothing) {
  const v1::JobPlan plan = PlanOf(Lamb(), 2);
  JudgedJob job(plan), undisturbed(plan);
  int chunks_of_1 = 0;
  for (const auto& chunk : plan.chunks()) chunks_of_1 += chunk.shard();
  WireHeader norms = FetchHeader(plan, 0, 0, /*rank=*/1);
  norms.kind = MessageKind::kNorms;
  WireHeader trust = FetchHeader(plan, 0, 0, /*rank=*/0);
  trust.kind = MessageKind::kTrust;
  job.Worker(0, 0).Send(norms, std::string(16 * chunks_of_1, 'x'));
  job.Worker(0, 1).Send(trust, std::string(8 * 3, 'x'));
  for (int shard : {0, 1}) {
    EXPECT_FALSE(job.Worker(0, shard).AwaitLost().ok());
    job.GreetAgain(0, shard);
  }
  for (int64_t step = 0; step < 3; ++step) {
    job.Step(step, Wavy);
    undisturbed.Step(step, Wavy);
  }
  EXPECT_EQ(job.values(), undisturbed.values());
  EXPECT_EQ(job.refused(RefusalReason::kBadHeader), 2);
}

}  // namespace
}  // namespace muster::layerwise_steps_test
