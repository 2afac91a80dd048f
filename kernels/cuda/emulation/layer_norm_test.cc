#include "kernels/cuda/layer_norm.h"

#include "kernels/cuda/emulation/device_memory.h"
#include "kernels/cuda/group_norm.h"
#include "kernels/reference.h"

namespace muster::kernels::cuda::emulation::layer_norm_test {
namespace {

constexpr float kEpsilon = 1e-3f;

TEST(LayerNormTest, RowsOfOddLengthsAndTheirDerivatives) {
  const int64_t sizes[][2] = {{1, 9}, {3, 7}, {9, 8}, {70, 24}, {5, 300}, {3, 1600}};
  ForEveryRun([&](Type type) {
    for (const auto [rows, channels] : sizes) {
      SCOPED_TRACE(testing::Message() << rows << " x " << channels);
      const int64_t n = rows * channels, bytes = n * Bytes(type);
      const Floats x = Rounded(Normals(n, 1), type), dy = Rounded(Normals(n, 2), type);
      const Floats gain = Rounded(Normals(channels, 3), type);
      const Floats bias = Rounded(Normals(channels, 4), type);
      const auto expected =
          reference::LayerNorm(Wide(x), Wide(gain), Wide(bias), kEpsilon, rows, channels);
      std::vector<double> dgain(channels), dbias(channels);
      for (int64_t i = 0; i < n; ++i) {
        dgain[i % channels] += dy[i] * expected.normal[i];
        dbias[i % channels] += dy[i];
      }
      const NormRows shape = {rows, channels, type};
      DeviceMemory x_on(x, type), dy_on(dy, type), gain_on(gain, type), bias_on(bias, type);
      DeviceMemory y(bytes), dx(bytes), mean(4 * rows), rstd(4 * rows);
      DeviceMemory dgain_on(channels * Bytes(type)), dbias_on(channels * Bytes(type));
      DeviceMemory workspace(LayerNormGradParametersWorkspaceBytes(shape));

      ASSERT_EQ(LayerNorm({.y = y.data(),
                           .mean = mean.floats(),
                           .rstd = rstd.floats(),
                           .x = x_on.data(),
                           .gain = gain_on.data(),
                           .bias = bias_on.data(),
                           .epsilon = kEpsilon},
                          shape, nullptr),
                cudaSuccess);
      ASSERT_EQ(LayerNormGradInput(dx.data(), dy_on.data(), x_on.data(), gain_on.data(),
                                   mean.floats(), rstd.floats(), shape, nullptr),
                cudaSuccess);
      ASSERT_EQ(
          LayerNormGradParameters(dgain_on.data(), dbias_on.data(), dy_on.data(), x_on.data(),
                                  mean.floats(), rstd.floats(), shape, workspace.data(), nullptr),
          cudaSuccess);

      ExpectRounded(y.Read(type), expected.y, type, 8 * channels);
      ExpectRounded(dx.Read(type),
                    reference::LayerNormGradInput(Wide(dy), Wide(gain), expected, rows, channels),
                    type, 64 * channels);
      ExpectRounded(dgain_on.Read(type), dgain, type, 8 * rows);
      ExpectRounded(dbias_on.Read(type), dbias, type, rows);
    }
  });
}

// The kernel must normalise the sum that it stores. The rows have one or several vectors per lane,
// an odd length, or are too long for the registers.
TEST(LayerNormTest, NormalisesASum) {
  const int64_t sizes[][2] = {{3, 7}, {9, 8}, {5, 300}, {3, 1032}, {2, 1600}};
  ForEveryRun([&](Type type) {
    for (const auto [rows, channels] : sizes) {
      SCOPED_TRACE(testing::Message() << rows << " x " << channels);
      const int64_t n = rows * channels, bytes = n * Bytes(type);
      const Floats a = Rounded(Normals(n, 1), type), b = Rounded(Normals(n, 2), type);
      const Floats gain = Rounded(Normals(channels, 3), type);
      Floats sum(n);
      for (int64_t i = 0; i < n; ++i) sum[i] = a[i] + b[i];
      sum = Rounded(sum, type);
      const auto expected = reference::LayerNorm(
          Wide(sum), Wide(gain), std::vector<double>(channels), kEpsilon, rows, channels);
      DeviceMemory a_on(a, type), b_on(b, type), gain_on(gain, type);
      DeviceMemory y(bytes), sum_on(bytes), mean(4 * rows), rstd(4 * rows);

      ASSERT_EQ(LayerNorm({.y = y.data(),
                           .mean = mean.floats(),
                           .rstd = rstd.floats(),
                           .sum = sum_on.data(),
                           .x = a_on.data(),
                           .addend = b_on.data(),
                           .gain = gain_on.data(),
                           .epsilon = kEpsilon},
                          {rows, channels, type}, nullptr),
                cudaSuccess);

      EXPECT_EQ(sum_on.Read(type), sum);
      ExpectRounded(y.Read(type), expected.y, type, 8 * channels);
    }
  });
}

// The rows have one or several vectors per lane, a partial last vector, an odd length, or are too
// long for the registers. Some sizes have more rows than warps.
TEST(LayerNormTest, GradientsInOnePass) {
  const int64_t sizes[][2] = {{1, 9},    {3, 7},     {9, 8},    {70, 24}, {5, 300},
                              {19, 520}, {40, 1032}, {9, 1800}, {2200, 8}};
  ForEveryRun([&](Type type) {
    for (const auto [rows, channels] : sizes) {
      for (const bool of_two : {false, true}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << channels << ", of two: " << of_two);
        const int64_t n = rows * channels;
        const Floats x = Rounded(Normals(n, 1), type), dy = Rounded(Normals(n, 2), type);
        const Floats other = Rounded(Normals(n, 4), type);
        const Floats gain = Rounded(Normals(channels, 3), type);
        const auto forward = reference::LayerNorm(
            Wide(x), Wide(gain), std::vector<double>(channels), kEpsilon, rows, channels);
        std::vector<double> whole = Wide(dy);
        for (int64_t i = 0; of_two && i < n; ++i) whole[i] += other[i];
        const int64_t vector = 16 / Bytes(type);
        // Such rows do not stay in registers, so the sum is rounded when it is stored.
        if (channels % vector != 0 || channels > 6 * 32 * vector) {
          whole = Wide(Rounded(Floats(whole.begin(), whole.end()), type));
        }
        auto dx = reference::LayerNormGradInput(whole, Wide(gain), forward, rows, channels);
        std::vector<double> dgain(channels), dbias(channels);
        for (int64_t i = 0; i < n; ++i) {
          if (!of_two) dx[i] += other[i];
          dgain[i % channels] += whole[i] * forward.normal[i];
          dbias[i % channels] += whole[i];
        }
        const NormRows shape = {rows, channels, type};
        DeviceMemory x_on(x, type), dy_on(dy, type), other_on(other, type), gain_on(gain, type);
        DeviceMemory mean(Floats(forward.mean.begin(), forward.mean.end()), Type::kF32);
        DeviceMemory rstd(Floats(forward.rstd.begin(), forward.rstd.end()), Type::kF32);
        DeviceMemory dgain_on(channels * Bytes(type)), dbias_on(channels * Bytes(type));
        DeviceMemory workspace(LayerNormGradWorkspaceBytes(shape));

        ASSERT_EQ(LayerNormGrad({.dx = dy_on.data(),
                                 .dgain = dgain_on.data(),
                                 .dbias = dbias_on.data(),
                                 .dy = dy_on.data(),
                                 .dy_second = of_two ? other_on.data() : nullptr,
                                 .dsum = of_two ? nullptr : other_on.data(),
                                 .x = x_on.data(),
                                 .gain = gain_on.data(),
                                 .mean = mean.floats(),
                                 .rstd = rstd.floats()},
                                shape, workspace.data(), nullptr),
                  cudaSuccess);

        ExpectRounded(dy_on.Read(type), dx, type, 64 * channels);
        ExpectRounded(dgain_on.Read(type), dgain, type, 8 * rows);
        ExpectRounded(dbias_on.Read(type), dbias, type, rows);
      }
    }
  });
}

// A sample's group is a row with a gain that repeats over the pixels.
TEST(GroupNormTest, GroupsAreNormalised) {
  ForEveryRun([&](Type type) {
    const GroupNormShape shape = {
        .batch = 2, .channels = 6, .pixels = 7, .groups = 3, .type = type};
    const int64_t n = 2 * 6 * 7, row = 2 * 7;
    const Floats x = Rounded(Normals(n, 1), type);
    const Floats gain = Rounded(Normals(6, 3), type), bias = Rounded(Normals(6, 4), type);
    const auto normal = reference::LayerNorm(Wide(x), std::vector<double>(row, 1.0),
                                             std::vector<double>(row, 0.0), kEpsilon, 6, row);
    std::vector<double> expected(n);
    for (int64_t i = 0; i < n; ++i) expected[i] = normal.y[i] * gain[i / 7 % 6] + bias[i / 7 % 6];
    DeviceMemory x_on(x, type), gain_on(gain, type), bias_on(bias, type), y(n * Bytes(type));
    DeviceMemory mean(4 * 6), rstd(4 * 6);

    ASSERT_EQ(GroupNorm(y.data(), mean.floats(), rstd.floats(), x_on.data(), gain_on.data(),
                        bias_on.data(), kEpsilon, shape, nullptr),
              cudaSuccess);

    ExpectRounded(y.Read(type), expected, type, 64);
    ExpectClose(mean.Read(Type::kF32), normal.mean, row);
  });
}

}  // namespace
}  // namespace muster::kernels::cuda::emulation::layer_norm_test
