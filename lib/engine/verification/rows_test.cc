// Rows given to an executor by Executor::TakeRows: decoding of bytes, and which run uses which
// rows.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kernels/byte_values.h"
#include "kernels/philox.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "lib/engine/reference/reference.h"
#include "lib/engine/verification/instance.h"
#include "lib/engine/verification/models.h"
#include "lib/graph/lowering/lowering.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::verification::rows_test {
namespace {

constexpr int64_t kBatch = 5;
constexpr int kChannels = 3;
constexpr int64_t kPlane = int64_t{9} * 8;
constexpr int64_t kPixels = kChannels * kPlane;
constexpr int64_t kClasses = 5;

// Returns a table for each channel, or one table for all.
std::vector<kernels::ByteValues> Pixels(int tables) {
  std::vector<kernels::ByteValues> values(tables);
  for (int c = 0; c < tables; ++c) {
    for (int byte = 0; byte < 256; ++byte) {
      values[c][byte] = static_cast<float>(byte / 255.0 - 0.4 - 0.01 * c);
    }
  }
  return values;
}

// Images and labels of ConvolutionNet, in the device's host memory. In such memory TakeRows() may
// return before the device has copied the rows.
struct Batch {
  Batch(Device& device, uint64_t seed)
      : memory(device.Allocate(kBatch * (kPixels + sizeof(int32_t)), "a batch").value()),
        images(reinterpret_cast<uint8_t*>(memory.get()) + kBatch * sizeof(int32_t),
               kBatch * kPixels),
        labels(reinterpret_cast<int32_t*>(memory.get()), kBatch) {
    for (size_t i = 0; i < images.size(); ++i) {
      images[i] = static_cast<uint8_t>(kernels::RandomWords(seed, 0, i)[0]);
    }
    for (size_t i = 0; i < labels.size(); ++i) {
      labels[i] = static_cast<int32_t>(kernels::RandomWords(seed, 1, i)[0] % kClasses);
    }
  }

  std::vector<absl::Span<const std::byte>> rows() const {
    return {absl::MakeConstSpan(reinterpret_cast<const std::byte*>(images.data()), images.size()),
            absl::MakeConstSpan(reinterpret_cast<const std::byte*>(labels.data()),
                                labels.size() * sizeof(int32_t))};
  }

  Device::Memory memory;
  absl::Span<uint8_t> images;
  absl::Span<int32_t> labels;
};

class RowsTest : public testing::Test, private ParameterFlow {
 protected:
  RowsTest()
      : graph_(TrainingGraph(ConvolutionNet(), {}).value()),
        given_(RandomTensors(graph_, kBatch, kClasses, /*seed=*/7)) {}

  std::unique_ptr<Instance> Make(std::vector<absl::Span<const kernels::ByteValues>> row_values) {
    auto instance =
        Instance::Create(graph_, {.batch = kBatch, .row_values = std::move(row_values)});
    EXPECT_TRUE(instance.ok()) << instance.status();
    return *std::move(instance);
  }
  // Returns an instance that takes rows, images as bytes.
  std::unique_ptr<Instance> Taking() {
    std::unique_ptr<Instance> instance = Make({pixels_, {}});
    instance->SetParameters(given_);
    return instance;
  }

  struct Result {
    std::vector<double> loss, gradients;

    bool operator==(const Result&) const = default;
  };
  // Returns the expected result: that of a run with plain inputs that hold the decoded bytes.
  Result Expected(const Batch& batch) {
    if (plain_ == nullptr) plain_ = Make({});
    plain_->SetParameters(given_);
    std::vector<double> images, labels(batch.labels.begin(), batch.labels.end());
    for (size_t i = 0; i < batch.images.size(); ++i) {
      images.push_back(pixels_[i / kPlane % pixels_.size()][batch.images[i]]);
    }
    plain_->SetInput("input", images);
    plain_->SetInput("target", labels);
    EXPECT_TRUE(plain_->Run().ok());
    return ResultOf(*plain_);
  }
  Result ResultOf(const Instance& instance) const {
    Result result{.loss = instance.Output(graph_.loss())};
    for (const v1::Parameter& parameter : graph_.parameters()) {
      const std::vector<double> gradient = instance.Gradient(parameter.name());
      result.gradients.insert(result.gradients.end(), gradient.begin(), gradient.end());
    }
    return result;
  }

  // Runs `instance` and gives `next` at the first call of RowsMayCome(). Overwrites the memory of
  // `next` afterwards.
  absl::Status RunAndGive(Instance& instance, Batch next) {
    giving_ = &instance;
    next_ = next.rows();
    const absl::Status run = instance.Run({}, this);
    EXPECT_EQ(giving_, nullptr) << "asked for once";
    std::ranges::fill(next.images, uint8_t{0xa5});
    std::ranges::fill(next.labels, 0);
    return run;
  }

  const v1::Graph graph_;
  const reference::Tensors given_;
  std::vector<kernels::ByteValues> pixels_ = Pixels(/*tables=*/1);

 private:
  absl::Status AwaitParameter(int) override { return absl::OkStatus(); }
  absl::Status GradientReady(int) override { return absl::OkStatus(); }
  absl::Status RowsMayCome() override {
    return std::exchange(giving_, nullptr)->executor().TakeRows(next_);
  }

  std::unique_ptr<Instance> plain_;
  Instance* giving_ = nullptr;
  std::vector<absl::Span<const std::byte>> next_;
};

TEST_F(RowsTest, BytesAreDecodedToTheirValues) {
  const std::unique_ptr<Instance> taking = Taking();
  for (uint64_t seed : {1, 2}) {
    const Batch batch(taking->device(), seed);
    ASSERT_TRUE(taking->executor().TakeRows(batch.rows()).ok());
    ASSERT_TRUE(taking->Run().ok());
    EXPECT_EQ(ResultOf(*taking), Expected(batch)) << "to the bit, seed " << seed;
  }
  EXPECT_NE(Expected(Batch(taking->device(), 1)), Expected(Batch(taking->device(), 2)));
}

TEST_F(RowsTest, BytesOfEachChannelAreDecodedByItsTable) {
  pixels_ = Pixels(kChannels);
  const std::unique_ptr<Instance> taking = Taking();
  const Batch batch(taking->device(), /*seed=*/1);
  ASSERT_TRUE(taking->executor().TakeRows(batch.rows()).ok());
  ASSERT_TRUE(taking->Run().ok());
  EXPECT_EQ(ResultOf(*taking), Expected(batch)) << "to the bit";
}

TEST_F(RowsTest, RowsGivenDuringARunBelongToTheNextRun) {
  const std::unique_ptr<Instance> taking = Taking();
  const Batch first(taking->device(), 1);
  ASSERT_TRUE(taking->executor().TakeRows(first.rows()).ok());
  for (uint64_t seed = 1; seed < 6; ++seed) {
    const absl::Status run = RunAndGive(*taking, Batch(taking->device(), seed + 1));
    ASSERT_TRUE(run.ok()) << run;
    EXPECT_EQ(ResultOf(*taking), Expected(Batch(taking->device(), seed))) << seed;
  }
}

TEST_F(RowsTest, TheLastRowsGivenAreUsedUntilOthersCome) {
  const std::unique_ptr<Instance> taking = Taking();
  const Batch forgotten(taking->device(), 1), last(taking->device(), 2);
  ASSERT_TRUE(taking->executor().TakeRows(forgotten.rows()).ok());
  ASSERT_TRUE(taking->executor().TakeRows(last.rows()).ok());
  for (int run = 0; run < 2; ++run) {
    ASSERT_TRUE(taking->Run().ok());
    EXPECT_EQ(ResultOf(*taking), Expected(last)) << run;
  }
}

}  // namespace
}  // namespace muster::verification::rows_test
