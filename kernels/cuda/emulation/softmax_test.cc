#include "kernels/cuda/softmax.h"

#include "kernels/cuda/emulation/device_memory.h"
#include "kernels/reference.h"

namespace muster::kernels::cuda::emulation::softmax_test {
namespace {

constexpr int64_t kSizes[][2] = {{1, 2}, {3, 7}, {2, 8}, {5, 1003}, {4, 2056}};

std::vector<double> RowsOf(const Floats& x, int64_t classes) {
  std::vector<double> y;
  for (size_t row = 0; row < x.size(); row += classes) {
    const auto of_row =
        reference::Softmax({x.begin() + row, x.begin() + row + static_cast<size_t>(classes)});
    y.insert(y.end(), of_row.begin(), of_row.end());
  }
  return y;
}

TEST(SoftmaxTest, RowsOfOddLengthsAndTheirDerivatives) {
  ForEveryRun([](Type type) {
    for (const auto [rows, classes] : kSizes) {
      SCOPED_TRACE(testing::Message() << rows << " x " << classes);
      const int64_t n = rows * classes;
      const Floats x = Rounded(Normals(n, 1), type), dy = Rounded(Normals(n, 2), type);
      DeviceMemory x_on(x, type), dy_on(dy, type), y(n * Bytes(type)), dx(n * Bytes(type));
      SoftmaxShape shape = {};
      shape.rows = rows;
      shape.classes = classes;
      shape.type = type;

      ASSERT_EQ(Softmax(SoftmaxKind::kPlain, y.data(), x_on.data(), shape, nullptr), cudaSuccess);
      ASSERT_EQ(SoftmaxGrad(SoftmaxKind::kPlain, dx.data(), dy_on.data(), y.data(), shape, nullptr),
                cudaSuccess);

      ExpectRounded(y.Read(type), RowsOf(x, classes), type, classes);
      const Floats p = y.Read(type);
      std::vector<double> expected(n);
      for (int64_t r = 0; r < rows; ++r) {
        double dot = 0;
        for (int64_t i = r * classes; i < (r + 1) * classes; ++i) dot += double{p[i]} * dy[i];
        for (int64_t i = r * classes; i < (r + 1) * classes; ++i)
          expected[i] = p[i] * (dy[i] - dot);
      }
      ExpectRounded(dx.Read(type), expected, type, 8 * classes);
    }
  });
}

TEST(SoftmaxTest, CrossEntropyAndItsDerivative) {
  ForEveryRun([](Type type) {
    for (const auto [rows, classes] : kSizes) {
      SCOPED_TRACE(testing::Message() << rows << " x " << classes);
      const int64_t n = rows * classes;
      const float smoothing = 0.1f, scale = 16;
      const Floats x = Rounded(Normals(n, 1), type);
      std::vector<int32_t> target = RandomIds(rows, classes, 2);
      if (rows > 2) target[1] = -100;
      const std::vector<double> p = RowsOf(x, classes);
      double loss = 0, counted = 0;
      for (int64_t r = 0; r < rows; ++r) counted += target[r] >= 0;
      std::vector<double> expected(n, 0.0);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; target[r] >= 0 && c < classes; ++c) {
          const double wanted = (c == target[r] ? 1 - smoothing : 0) + smoothing / double(classes);
          loss -= wanted * std::log(p[r * classes + c]) / counted;
          expected[r * classes + c] = scale * (p[r * classes + c] - wanted) / counted;
        }
      }
      CrossEntropyShape shape = {};
      shape.logits.rows = rows;
      shape.logits.classes = classes;
      shape.logits.type = type;
      shape.label_smoothing = smoothing;
      shape.has_ignore_index = true;
      shape.ignore_index = -100;
      RunNumbers numbers = {.loss_scale = scale, .samples = rows, .batch = rows};
      DeviceMemory x_on(x, type), dx(n * Bytes(type)), target_on(target), lse(4 * rows);
      DeviceMemory factor(4), loss_on(4), workspace(4 * rows), wrong(std::vector<int32_t>(2));

      ASSERT_EQ(LossFactor(factor.floats(), 1, &numbers, rows, target_on.ints(), &shape, nullptr,
                           nullptr),
                cudaSuccess);
      ASSERT_EQ(SoftmaxCrossEntropy(loss_on.floats(), lse.floats(), x_on.data(), target_on.ints(),
                                    factor.floats(), shape, workspace.floats(),
                                    wrong.out_of_range(), nullptr),
                cudaSuccess);
      ASSERT_EQ(SoftmaxCrossEntropyGrad(dx.data(), x_on.data(), target_on.ints(), lse.floats(),
                                        factor.floats(), &numbers, shape, nullptr),
                cudaSuccess);

      EXPECT_EQ(wrong.out_of_range()->found, 0);
      ExpectClose(loss_on.Read(Type::kF32), {loss}, 8 * classes);
      ExpectRounded(dx.Read(type), expected, type, 8 * classes);
    }
  });
}

}  // namespace
}  // namespace muster::kernels::cuda::emulation::softmax_test
