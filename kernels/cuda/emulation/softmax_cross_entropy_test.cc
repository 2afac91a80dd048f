#include "kernels/cuda/emulation/device_memory.h"
#include "kernels/cuda/softmax.h"

namespace muster::kernels::cuda::emulation::softmax_cross_entropy_test {
namespace {

struct Size {
  int64_t rows, classes, row;
};
// The sizes have rows of odd and even length without gaps, and rows with gaps after whole and
// partial vectors.
constexpr Size kSizes[] = {{3, 7, 0}, {4, 1000, 0}, {3, 1001, 1024}, {2, 2099, 2112}, {5, 8, 64}};

TEST(SoftmaxCrossEntropyTest, IgnoresTheGapsBetweenRows) {
  ForEveryRun([&](Type type) {
    for (const Size& size : kSizes) {
      for (float smoothing : {0.0f, 0.1f}) {
        SCOPED_TRACE(testing::Message() << size.rows << ", " << size.classes << ", " << size.row);
        const int64_t rows = size.rows, classes = size.classes;
        const int64_t row = size.row == 0 ? classes : size.row;
        const Floats x = Rounded(Normals(rows * classes, 1), type);
        Floats spread(rows * row, NAN);
        for (int64_t i = 0; i < rows * classes; ++i) spread[i / classes * row + i % classes] = x[i];
        std::vector<int32_t> targets = RandomIds(rows, static_cast<int32_t>(classes), 2);
        targets[1] = -1;  // ignored
        const auto counted = static_cast<double>(rows - 1);
        double loss = 0;
        std::vector<double> slopes(rows * row, 0.0);
        for (int64_t r = 0; r < rows; ++r) {
          if (targets[r] < 0) continue;
          double total = 0, mean = 0;
          for (int64_t c = 0; c < classes; ++c) {
            total += std::exp(double{x[r * classes + c]});
            mean += x[r * classes + c] / static_cast<double>(classes);
          }
          const double lse = std::log(total);
          loss +=
              (lse - (1 - smoothing) * x[r * classes + targets[r]] - smoothing * mean) / counted;
          for (int64_t c = 0; c < classes; ++c) {
            const double wanted =
                (c == targets[r] ? 1 - smoothing : 0) + smoothing / static_cast<double>(classes);
            slopes[r * row + c] = 8 / counted * (std::exp(x[r * classes + c] - lse) - wanted);
          }
        }

        DeviceMemory logits(spread, type), target(targets), factor(4), y(4), lse(4 * rows);
        DeviceMemory workspace(4 * rows), out_of_range(std::vector<int32_t>(2));
        const RunNumbers numbers = {.loss_scale = 8, .samples = rows, .batch = rows};
        const CrossEntropyShape shape = {.logits = {rows, classes, type},
                                         .row = size.row,
                                         .label_smoothing = smoothing,
                                         .has_ignore_index = true,
                                         .ignore_index = -1};
        ASSERT_EQ(
            LossFactor(factor.floats(), 1, &numbers, rows, target.ints(), &shape, nullptr, nullptr),
            cudaSuccess);
        ASSERT_EQ(SoftmaxCrossEntropy(y.floats(), lse.floats(), logits.data(), target.ints(),
                                      factor.floats(), shape, workspace.floats(),
                                      out_of_range.out_of_range(), nullptr),
                  cudaSuccess);
        EXPECT_NEAR(y.floats()[0], loss, 1e-5 * loss);
        EXPECT_EQ(out_of_range.out_of_range()->found, 0);
        // dlogits is logits.
        ASSERT_EQ(SoftmaxCrossEntropyGrad(logits.data(), logits.data(), target.ints(), lse.floats(),
                                          factor.floats(), &numbers, shape, nullptr),
                  cudaSuccess);
        ExpectRounded(logits.Read(type), slopes, type, 64);
      }
    }
  });
}

// The ranks have 1, 6 and the other classes. A rank's rows have gaps, if those of the whole have.
TEST(SoftmaxCrossEntropyTest, RanksWithPartsOfTheClassesGiveWhatOneGives) {
  ForEveryRun([&](Type type) {
    for (const Size& size : kSizes) {
      if (size.classes < 8) continue;
      for (float smoothing : {0.0f, 0.1f}) {
        SCOPED_TRACE(testing::Message() << size.rows << ", " << size.classes << ", " << size.row);
        const int64_t rows = size.rows, classes = size.classes;
        const Floats x = Rounded(Normals(rows * classes, 1), type);
        std::vector<int32_t> targets = RandomIds(rows, classes, 2);
        targets[0] = 0;
        targets[1] = 3;  // ignored
        CrossEntropyShape shape = {.logits = {rows, classes, type},
                                   .label_smoothing = smoothing,
                                   .has_ignore_index = true,
                                   .ignore_index = 3};
        const RunNumbers numbers = {.loss_scale = 8, .samples = rows, .batch = rows};
        DeviceMemory target(targets), factor(Floats{0.25f}, Type::kF32), workspace(4 * rows);
        DeviceMemory loss(4), lse(4 * rows), logits(x, type);
        DeviceMemory out_of_range(std::vector<int32_t>(2));
        ASSERT_EQ(SoftmaxCrossEntropy(loss.floats(), lse.floats(), logits.data(), target.ints(),
                                      factor.floats(), shape, workspace.floats(),
                                      out_of_range.out_of_range(), nullptr),
                  cudaSuccess);
        ASSERT_EQ(SoftmaxCrossEntropyGrad(logits.data(), logits.data(), target.ints(), lse.floats(),
                                          factor.floats(), &numbers, shape, nullptr),
                  cudaSuccess);
        const Floats slopes = logits.Read(type);

        const std::vector<int64_t> ends = {0, 1, 7, classes};
        constexpr int64_t kRanks = 3;
        const int64_t part = rows * kCrossEntropyParts;
        DeviceMemory parts(4 * kRanks * part);
        std::vector<CrossEntropyShape> shapes;
        std::vector<DeviceMemory> own;
        for (int64_t rank = 0; rank < kRanks; ++rank) {
          shape.first = ends[rank];
          shape.whole = classes;
          shape.logits.classes = ends[rank + 1] - ends[rank];
          shape.row = size.row == 0 ? shape.logits.classes : (shape.logits.classes + 63) / 64 * 64;
          shapes.push_back(shape);
          Floats spread(rows * shape.row, NAN);
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t c = 0; c < shape.logits.classes; ++c) {
              spread[r * shape.row + c] = x[r * classes + shape.first + c];
            }
          }
          own.emplace_back(spread, type);
          ASSERT_EQ(
              SoftmaxCrossEntropyParts(parts.floats() + rank * part, own[rank].data(),
                                       target.ints(), shape, out_of_range.out_of_range(), nullptr),
              cudaSuccess);
        }
        EXPECT_EQ(out_of_range.out_of_range()->found, 0);
        for (int64_t rank = 0; rank < kRanks; ++rank) {
          const CrossEntropyShape& s = shapes[rank];
          DeviceMemory own_loss(4), own_lse(4 * rows);
          ASSERT_EQ(MergeSoftmaxCrossEntropy(own_loss.floats(), own_lse.floats(), parts.floats(),
                                             kRanks, target.ints(), factor.floats(), s,
                                             workspace.floats(), nullptr),
                    cudaSuccess);
          ASSERT_EQ(
              SoftmaxCrossEntropyGrad(own[rank].data(), own[rank].data(), target.ints(),
                                      own_lse.floats(), factor.floats(), &numbers, s, nullptr),
              cudaSuccess);
          EXPECT_NEAR(own_loss.floats()[0], loss.floats()[0], 1e-5 * loss.floats()[0]);
          ExpectClose(own_lse.Read(Type::kF32), Wide(lse.Read(Type::kF32)), 16);
          std::vector<double> expected(rows * s.row, 0.0);
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t c = 0; c < s.logits.classes; ++c) {
              expected[r * s.row + c] = slopes[r * classes + s.first + c];
            }
          }
          ExpectRounded(own[rank].Read(type), expected, type, 64);
        }
      }
    }
  });
}

TEST(SoftmaxCrossEntropyTest, APartReportsATargetThatNoPartHas) {
  const CrossEntropyShape shape = {
      .logits = {.rows = 1, .classes = 2, .type = Type::kF32}, .first = 3, .whole = 7};
  DeviceMemory logits(Floats{1, 2}, Type::kF32), parts(4 * kCrossEntropyParts);
  for (const int32_t bad : {-1, 7}) {
    DeviceMemory target(std::vector<int32_t>{bad}), out_of_range(std::vector<int32_t>(2));
    ASSERT_EQ(SoftmaxCrossEntropyParts(parts.floats(), logits.data(), target.ints(), shape,
                                       out_of_range.out_of_range(), nullptr),
              cudaSuccess);
    EXPECT_EQ(out_of_range.out_of_range()->found, 1);
    EXPECT_EQ(out_of_range.out_of_range()->id, bad);
  }
}

TEST(SoftmaxCrossEntropyTest, ARankWithoutAFiniteLogitAddsNothing) {
  DeviceMemory parts(Floats{-INFINITY, 0, 0, 2, 1, 2}, Type::kF32), target(std::vector<int32_t>{1});
  DeviceMemory factor(Floats{1}, Type::kF32), loss(4), lse(4), workspace(4);
  const CrossEntropyShape shape = {
      .logits = {.rows = 1, .classes = 1, .type = Type::kF32}, .first = 1, .whole = 2};
  ASSERT_EQ(
      MergeSoftmaxCrossEntropy(loss.floats(), lse.floats(), parts.floats(), /*ranks=*/2,
                               target.ints(), factor.floats(), shape, workspace.floats(), nullptr),
      cudaSuccess);
  EXPECT_EQ(lse.floats()[0], 2);
  EXPECT_EQ(loss.floats()[0], 0);
}

}  // namespace
}  // namespace muster::kernels::cuda::emulation::softmax_cross_entropy_test
