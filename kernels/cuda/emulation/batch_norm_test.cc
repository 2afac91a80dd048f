#include "kernels/cuda/batch_norm.h"

#include "kernels/cuda/emulation/device_memory.h"
#include "kernels/reference.h"

namespace muster::kernels::cuda::emulation::batch_norm_test {
namespace {

constexpr float kEpsilon = 1e-3f;

struct Size {
  int64_t batch, channels, pixels;
};
// The sizes have whole and partial vectors of 4 and 8, and rows in one part or in several parts.
constexpr Size kSizes[] = {{3, 1, 1}, {2, 3, 35}, {2, 8, 16}, {3, 12, 9}, {1, 40, 90}, {70, 24, 2}};

// Converts [B, C, S] to the order, and the reverse.
Floats Reordered(const Floats& x, const Size& s, ChannelOrder order, bool back) {
  if (order == ChannelOrder::kFirst) return x;
  Floats y(x.size());
  for (int64_t b = 0, i = 0; b < s.batch; ++b) {
    for (int64_t c = 0; c < s.channels; ++c) {
      for (int64_t p = 0; p < s.pixels; ++p, ++i) {
        const int64_t last = (b * s.pixels + p) * s.channels + c;
        y[back ? i : last] = x[back ? last : i];
      }
    }
  }
  return y;
}

enum class Form { kPlain, kRelu, kAddRelu, kAddReluOfTwo };

class BatchNormTest : public testing::Test {
 protected:
  // Calls run(size, shape without activation).
  template <typename F>
  void ForEveryShape(F run) {
    ForEveryRun([&](Type type) {
      for (const Size& size : kSizes) {
        for (ChannelOrder order : {ChannelOrder::kFirst, ChannelOrder::kLast}) {
          // Channels first take a block per channel, which is slow to emulate.
          if (order == ChannelOrder::kFirst && size.channels > 12) continue;
          SCOPED_TRACE(testing::Message() << size.batch << ", " << size.channels << ", "
                                          << size.pixels << ", order " << static_cast<int>(order));
          run(size, BatchNormShape{size.batch, size.channels, size.pixels, order, type});
        }
      }
    });
  }

  DeviceMemory ToDevice(const Floats& x, const Size& size, const BatchNormShape& shape) {
    return DeviceMemory(Reordered(x, size, shape.order, /*back=*/false), shape.type);
  }
  Floats FromDevice(DeviceMemory& x, const Size& size, const BatchNormShape& shape) {
    return Reordered(x.Read(shape.type), size, shape.order, /*back=*/true);
  }
};

TEST_F(BatchNormTest, EveryOrderMatchesTheFormula) {
  ForEveryShape([&](const Size& size, BatchNormShape shape) {
    const int64_t values = size.batch * size.pixels, n = values * size.channels;
    const Floats x = Rounded(Normals(n, 1), shape.type), dy = Rounded(Normals(n, 2), shape.type);
    const Floats gain = Rounded(Normals(size.channels, 3), shape.type);
    const Floats bias = Rounded(Normals(size.channels, 4), shape.type);
    const reference::BatchNorm expected(Wide(x), kEpsilon, size.batch, size.channels, size.pixels);
    for (Form form : {Form::kPlain, Form::kRelu, Form::kAddRelu, Form::kAddReluOfTwo}) {
      const bool relu = form != Form::kPlain, adds = form >= Form::kAddRelu;
      const bool two = form == Form::kAddReluOfTwo;
      shape.activation = relu ? BatchNormActivation::kRelu : BatchNormActivation::kNone;
      const Floats addend = Rounded(adds ? Normals(n, 5) : Floats(n), shape.type);
      const int64_t bytes = n * Bytes(shape.type),
                    channel_bytes = size.channels * Bytes(shape.type);
      DeviceMemory x_on = ToDevice(x, size, shape), dy_on = ToDevice(dy, size, shape);
      const Floats second = Rounded(two ? Normals(n, 6) : Floats(n), shape.type);
      DeviceMemory addend_on = ToDevice(addend, size, shape), daddend(bytes);
      DeviceMemory second_on = ToDevice(second, size, shape);
      DeviceMemory gain_on(gain, shape.type), bias_on(bias, shape.type), y(bytes), dx(bytes);
      DeviceMemory dgain(channel_bytes), dbias(channel_bytes), mean(4 * size.channels);
      DeviceMemory rstd(4 * size.channels), variance(4 * size.channels);
      DeviceMemory state(BatchNormStateBytes(shape)), workspace(BatchNormWorkspaceBytes(shape));

      ASSERT_EQ(BatchNorm({y.data(), mean.floats(), rstd.floats(), variance.floats(), state.data()},
                          x_on.data(), adds ? addend_on.data() : nullptr, bias_on.data(),
                          gain_on.data(), kEpsilon, shape, workspace.data(), nullptr),
                cudaSuccess);
      ASSERT_EQ(
          BatchNormGrad({dx.data(), dbias.data(), dgain.data(), adds ? daddend.data() : nullptr},
                        dy_on.data(), two ? second_on.data() : nullptr, x_on.data(),
                        adds ? y.data() : nullptr, mean.floats(), rstd.floats(), state.data(),
                        shape, workspace.data(), nullptr),
          cudaSuccess);

      const Floats actual_y = FromDevice(y, size, shape);
      std::vector<double> of_y(n), through(n), sum(size.channels), dot(size.channels);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t c = expected.ChannelOf(i);
        of_y[i] = expected.normal[i] * gain[c] + bias[c] + addend[i];
        if (relu && of_y[i] < 0) of_y[i] = 0;
        through[i] = relu && actual_y[i] <= 0 ? 0 : double{dy[i]} + second[i];
        sum[c] += through[i];
        dot[c] += through[i] * expected.normal[i];
      }
      ExpectClose(mean.Read(Type::kF32), expected.mean, values);
      ExpectClose(rstd.Read(Type::kF32), expected.rstd, values);
      ExpectClose(variance.Read(Type::kF32), expected.variance, values);
      ExpectRounded(actual_y, of_y, shape.type, values);
      ExpectRounded(dbias.Read(shape.type), sum, shape.type, values);
      ExpectRounded(dgain.Read(shape.type), dot, shape.type, values);
      if (adds) ExpectRounded(FromDevice(daddend, size, shape), through, shape.type);
      if (values > 3) {
        // The second pass reads g as stored, so round it.
        through = Wide(Rounded(Floats(through.begin(), through.end()), shape.type));
        ExpectRounded(FromDevice(dx, size, shape), expected.GradInput(through, Wide(gain)),
                      shape.type, 64 * values);
      }
    }
  });
}

TEST_F(BatchNormTest, InferenceTakesTheRunningValues) {
  ForEveryShape([&](const Size& size, const BatchNormShape& shape) {
    const int64_t n = size.batch * size.pixels * size.channels;
    const Floats x = Rounded(Normals(n, 1), shape.type);
    const Floats bias = Rounded(Normals(size.channels, 4), shape.type);
    const Floats mean = Normals(size.channels, 5);
    Floats variance = Normals(size.channels, 6);
    for (float& v : variance) v *= v;
    std::vector<double> expected(n);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t c = i / size.pixels % size.channels;
      expected[i] = (double{x[i]} - mean[c]) / std::sqrt(double{variance[c]} + kEpsilon) + bias[c];
    }
    DeviceMemory y = ToDevice(x, size, shape), bias_on(bias, shape.type);
    DeviceMemory mean_on(mean, Type::kF32), variance_on(variance, Type::kF32);
    DeviceMemory workspace(BatchNormWorkspaceBytes(shape));

    ASSERT_EQ(BatchNormInference(y.data(), y.data(), mean_on.floats(), variance_on.floats(),
                                 bias_on.data(), /*gain=*/nullptr, kEpsilon, shape,
                                 workspace.data(), nullptr),
              cudaSuccess);

    ExpectRounded(FromDevice(y, size, shape), expected, shape.type);
  });
}

TEST_F(BatchNormTest, AChannelsBiasIsAddedAndItsGradientSummed) {
  ForEveryShape([&](const Size& size, const BatchNormShape& shape) {
    const int64_t values = size.batch * size.pixels, n = values * size.channels;
    const Floats x = Rounded(Normals(n, 1), shape.type);
    const Floats bias = Rounded(Normals(size.channels, 4), shape.type);
    std::vector<double> expected(n), sums(size.channels);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t c = i / size.pixels % size.channels;
      expected[i] = double{x[i]} + bias[c];
      sums[c] += x[i];
    }
    DeviceMemory x_on = ToDevice(x, size, shape), bias_on(bias, shape.type);
    DeviceMemory y(n * Bytes(shape.type)), dbias(size.channels * Bytes(shape.type));
    DeviceMemory workspace(BatchNormWorkspaceBytes(shape));

    ASSERT_EQ(
        AddChannelBias(y.data(), x_on.data(), bias_on.data(), shape, workspace.data(), nullptr),
        cudaSuccess);
    ASSERT_EQ(SumChannelBias(dbias.data(), x_on.data(), shape, workspace.data(), nullptr),
              cudaSuccess);

    ExpectRounded(FromDevice(y, size, shape), expected, shape.type);
    ExpectRounded(dbias.Read(shape.type), sums, shape.type, values);
  });
}

}  // namespace
}  // namespace muster::kernels::cuda::emulation::batch_norm_test
