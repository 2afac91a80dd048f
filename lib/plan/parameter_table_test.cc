#include "lib/plan/parameter_table.h"

#include <map>

#include "gtest/gtest.h"
#include "lib/limits/limits.h"

namespace muster::parameter_table_test {
namespace {

v1::Graph GraphOf(std::vector<std::vector<int64_t>> shapes) {
  v1::Graph graph;
  for (const auto& shape : shapes) {
    v1::Parameter& parameter = *graph.add_parameters();
    for (int64_t dimension : shape) parameter.add_shape(dimension);
  }
  return graph;
}

TEST(ParameterTableTest, ChunksCoverEveryElementOnce) {
  v1::Graph graph = GraphOf({{100, 7}, {}, {16}});
  for (int64_t chunk_bytes : {64, 1024, 1 << 20}) {
    std::map<int, int64_t> next;
    for (const v1::PlanChunk& chunk : CutIntoChunks(graph, chunk_bytes)) {
      EXPECT_EQ(chunk.offset(), next[chunk.parameter()]);
      EXPECT_LE(chunk.elements() * 4, chunk_bytes);
      next[chunk.parameter()] += chunk.elements();
    }
    EXPECT_EQ(ChunkCount(graph, chunk_bytes), std::ssize(CutIntoChunks(graph, chunk_bytes)));
    EXPECT_EQ(next, (std::map<int, int64_t>{{0, 700}, {1, 1}, {2, 16}}));
  }
}

TEST(ParameterTableTest, SlotsOfALocalSgdJobAreCutLikeTheValues) {
  v1::JobSpec spec;
  spec.mutable_training()->mutable_optimizer()->mutable_adam()->set_learning_rate(1);
  const std::vector<v1::PlanChunk> values = CutIntoChunks(GraphOf({{6}, {}}), 16);
  EXPECT_EQ(WithAveragedSlots(spec, values).size(), values.size());

  spec.mutable_sync()->set_mode(v1::LOCAL_SGD);
  const std::vector<v1::PlanChunk> chunks = WithAveragedSlots(spec, values);
  ASSERT_EQ(chunks.size(), 3 * values.size());
  for (size_t i = 0; i < chunks.size(); ++i) {
    const v1::PlanChunk& like = values[i % values.size()];
    EXPECT_EQ(chunks[i].slot(), i / values.size());
    EXPECT_EQ(chunks[i].parameter(), like.parameter());
    EXPECT_EQ(chunks[i].offset(), like.offset());
    EXPECT_EQ(chunks[i].elements(), like.elements());
  }
}

TEST(ParameterTableTest, SchedulesFollowTheirFormulas) {
  v1::TrainingSpec training;
  training.mutable_optimizer()->mutable_sgd()->set_learning_rate(2.0);
  EXPECT_DOUBLE_EQ(LearningRate(training, 5, 10), 2.0);

  training.mutable_schedule()->set_warmup_steps(4);
  EXPECT_DOUBLE_EQ(LearningRate(training, 0, 10), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(training, 3, 10), 2.0);

  training.mutable_schedule()->mutable_cosine()->set_final_ratio(0.1);
  EXPECT_DOUBLE_EQ(LearningRate(training, 4, 14), 2.0);
  EXPECT_DOUBLE_EQ(LearningRate(training, 9, 14), 2.0 * (0.1 + 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(LearningRate(training, 14, 14), 0.2);

  training.mutable_schedule()->mutable_step()->set_every_steps(3);
  training.mutable_schedule()->mutable_step()->set_factor(0.5);
  EXPECT_DOUBLE_EQ(LearningRate(training, 10, 14), 0.5);

  training.mutable_schedule()->mutable_poly()->set_power(2);
  EXPECT_DOUBLE_EQ(LearningRate(training, 9, 14), 0.5);
}

TEST(ParameterTableTest, StepsAreJudgedIfAnUpdateNeedsTheWholeGradient) {
  v1::TrainingSpec training;
  training.mutable_optimizer()->mutable_adam()->set_learning_rate(1);
  training.mutable_clip()->set_value(1);
  EXPECT_FALSE(StepsAreJudged(training));
  training.mutable_clip()->set_global_norm(1);
  EXPECT_TRUE(StepsAreJudged(training));
  training.clear_clip();
  training.set_precision(v1::FP16);
  EXPECT_TRUE(StepsAreJudged(training));
  training.set_precision(v1::BF16);
  EXPECT_FALSE(HasTrustRatios(training.optimizer()));
  training.mutable_optimizer()->mutable_lamb()->set_learning_rate(1);
  EXPECT_TRUE(StepsAreJudged(training));
  training.mutable_optimizer()->mutable_lars()->set_learning_rate(1);
  EXPECT_TRUE(StepsAreJudged(training));
  EXPECT_TRUE(HasTrustRatios(training.optimizer()));
}

TEST(ParameterTableTest, EpochsCountWholeBatches) {
  v1::JobSpec spec;
  spec.mutable_data()->set_batch_size(32);
  spec.mutable_training()->set_epochs(2);
  EXPECT_EQ(TotalSteps(spec, 100), 6);
  spec.mutable_training()->set_steps(17);
  EXPECT_EQ(TotalSteps(spec, 100), 17);
}

TEST(ParameterTableTest, EpochsThatContinueCountEverySample) {
  v1::JobSpec spec;
  v1::DataSpec& data = *spec.mutable_data();
  data.set_last_batch(v1::LAST_BATCH_CONTINUE);
  const auto steps = [&](int64_t batch_size, int64_t samples, double epochs) {
    data.set_batch_size(batch_size);
    spec.mutable_training()->set_epochs(epochs);
    return TotalSteps(spec, samples);
  };
  EXPECT_EQ(steps(32, 100, 2), 7);   // 200 samples
  EXPECT_EQ(steps(50, 100, 3), 6);   // 300 samples
  EXPECT_EQ(steps(10, 25, 0.5), 2);  // 13 samples
  EXPECT_EQ(steps(11, 10, 1.1), 1);  // 11 samples, though 1.1 * 10 > 11
  EXPECT_EQ(steps(7, 1, 1e-300), 1);
  EXPECT_EQ(steps(1, int64_t{1} << 36, 1e300), limits::kStepsMax);
  EXPECT_EQ(steps(1 << 20, int64_t{1} << 60, 1e300), limits::kStepsMax);
  data.set_last_batch(v1::LAST_BATCH_DROP);
  EXPECT_EQ(steps(32, 100, 2), 6);
}

TEST(ParameterTableTest, EpochsNeverMakeMoreStepsThanTheLimitNorFewerThanOne) {
  v1::JobSpec spec;
  spec.mutable_data()->set_batch_size(1);
  for (double epochs : {1e6, 1e12, 1e300}) {
    spec.mutable_training()->set_epochs(epochs);
    EXPECT_EQ(TotalSteps(spec, int64_t{1} << 36), limits::kStepsMax) << epochs;
  }
  spec.mutable_training()->set_epochs(1e-300);
  EXPECT_EQ(TotalSteps(spec, int64_t{1} << 36), 1);
}

}  // namespace
}  // namespace muster::parameter_table_test
