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

}  // namespace
}  // namespace muster::kernels::cuda::emulation::softmax_cross_entropy_test
