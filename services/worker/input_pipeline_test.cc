#include "services/worker/input_pipeline.h"

#include <atomic>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "lib/data/sample_order.h"

namespace muster {
namespace {

// A sample's input is its number and epoch, its target the number again.
class NumberedSamples : public Dataset {
 public:
  int64_t samples() const override { return 10; }
  int64_t evaluation_samples() const override { return 0; }
  void Read(int64_t epoch, absl::Span<const int64_t> samples, absl::Span<std::byte> input,
            absl::Span<std::byte> target) const override {
    ++batches_read;
    for (size_t i = 0; i < samples.size(); ++i) {
      const int64_t row[2] = {samples[i], epoch};
      std::memcpy(input.data() + 16 * i, row, 16);
      std::memcpy(target.data() + 8 * i, &samples[i], 8);
    }
  }
  void ReadEvaluation(int64_t, int64_t, absl::Span<std::byte>,
                      absl::Span<std::byte>) const override {}

  mutable std::atomic<int64_t> batches_read = 0;
};

TEST(InputPipelineTest, GivesTheSamplesOfEveryStepInOrder) {
  const NumberedSamples dataset;
  InputPipeline pipeline({.dataset = &dataset,
                          .seed = 7,
                          .batch_size = 4,
                          .first_position = 1,
                          .samples = 3,
                          .first_step = 5,
                          .input_bytes = 16,
                          .target_bytes = 8,
                          .batches = 2});
  for (int64_t step = 5; step < 100; ++step) {
    const InputPipeline::Batch batch = pipeline.Next();
    const BatchShare expected = SamplesOfStep(7, 10, 4, step, 1, 3);
    ASSERT_EQ(batch.step, step);
    ASSERT_EQ(batch.input.size(), 48);
    for (int i = 0; i < 3; ++i) {
      int64_t row[2], target;
      std::memcpy(row, batch.input.data() + 16 * i, 16);
      std::memcpy(&target, batch.target.data() + 8 * i, 8);
      EXPECT_EQ(row[0], expected.samples[i]);
      EXPECT_EQ(row[1], expected.epoch);
      EXPECT_EQ(target, expected.samples[i]);
    }
  }
}

TEST(InputPipelineTest, NeverReadsIntoTheBatchInUseOrBeyondItsBuffers) {
  const NumberedSamples dataset;
  {
    InputPipeline pipeline({.dataset = &dataset,
                            .batch_size = 10,
                            .samples = 10,
                            .input_bytes = 16,
                            .target_bytes = 8,
                            .batches = 3});
    for (int64_t step = 0; step < 20; ++step) {
      pipeline.Next();
      EXPECT_LE(dataset.batches_read, step + 3);
    }
  }
  EXPECT_LE(dataset.batches_read, 22);
}

}  // namespace
}  // namespace muster
