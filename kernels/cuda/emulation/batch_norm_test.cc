#include "kernels/cuda/batch_norm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

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

      const BatchNormGradients gradients = {dx.data(), dbias.data(), dgain.data(),
                                            adds ? daddend.data() : nullptr};
      ASSERT_EQ(BatchNormMoments(x_on.data(), shape, workspace.data(), nullptr), cudaSuccess);
      ASSERT_EQ(
          BatchNormApply({y.data(), mean.floats(), rstd.floats(), variance.floats(), state.data()},
                         x_on.data(), adds ? addend_on.data() : nullptr, bias_on.data(),
                         gain_on.data(), kEpsilon, shape, workspace.data(), nullptr),
          cudaSuccess);
      ASSERT_EQ(BatchNormGradSums(gradients, dy_on.data(), two ? second_on.data() : nullptr,
                                  x_on.data(), adds ? y.data() : nullptr, mean.floats(),
                                  state.data(), shape, workspace.data(), nullptr),
                cudaSuccess);
      ASSERT_EQ(BatchNormGradApply(gradients, dy_on.data(), x_on.data(), mean.floats(),
                                   rstd.floats(), state.data(), shape, workspace.data(), nullptr),
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

// The memory of one of several devices, with `samples` of x and dy from `first` on.
struct Part {
  Part(const BatchNormShape& whole, int devices, int64_t first, int64_t samples, const Floats& x,
       const Floats& dy)
      : shape(whole),
        x(Rows(x, first, samples), Type::kF32),
        dy(Rows(dy, first, samples), Type::kF32),
        y(4 * samples * Row()),
        dx(4 * samples * Row()),
        dbias(4 * whole.channels),
        dgain(4 * whole.channels),
        daddend(4 * samples * Row()),
        mean(4 * whole.channels),
        rstd(4 * whole.channels),
        variance(4 * whole.channels),
        state(BatchNormStateBytes(whole)),
        workspace(WorkspaceBytes(devices, samples)) {
    shape.batch = samples;
    shape.devices = devices;
  }

  int64_t Row() const { return shape.channels * shape.pixels; }
  Floats Rows(const Floats& values, int64_t first, int64_t samples) const {
    return Floats(values.begin() + first * Row(), values.begin() + (first + samples) * Row());
  }
  int64_t WorkspaceBytes(int devices, int64_t samples) const {
    BatchNormShape own = shape;
    own.batch = samples;
    own.devices = devices;
    return BatchNormWorkspaceBytes(own);
  }
  BatchNormGradients gradients(bool adds) {
    return {dx.data(), dbias.data(), dgain.data(), adds ? daddend.data() : nullptr};
  }

  BatchNormShape shape;
  DeviceMemory x, dy, y, dx, dbias, dgain, daddend, mean, rstd, variance, state, workspace;
};

void Gather(std::vector<std::unique_ptr<Part>>& parts) {
  if (parts.size() == 1) return;
  for (size_t from = 0; from < parts.size(); ++from) {
    const BatchNormSums sums = BatchNormSumsIn(parts[from]->shape, parts[from]->workspace.data());
    for (const auto& to : parts) {
      std::copy_n(sums.own, sums.size,
                  BatchNormSumsIn(to->shape, to->workspace.data()).all +
                      static_cast<int64_t>(from) * sums.size);
    }
  }
}

// Runs both passes on devices with the given samples each. x is also the addend.
std::vector<std::unique_ptr<Part>> RunInParts(const std::vector<int64_t>& samples,
                                              const BatchNormShape& shape, Form form,
                                              const Floats& x, const Floats& dy, const Floats& bias,
                                              const Floats& gain) {
  const bool adds = form == Form::kAddRelu;
  DeviceMemory bias_on(bias, Type::kF32), gain_on(gain, Type::kF32);
  std::vector<std::unique_ptr<Part>> parts;
  int64_t first = 0;
  for (const int64_t count : samples) {
    parts.push_back(
        std::make_unique<Part>(shape, static_cast<int>(samples.size()), first, count, x, dy));
    first += count;
  }
  for (const auto& p : parts) {
    EXPECT_EQ(BatchNormMoments(p->x.data(), p->shape, p->workspace.data(), nullptr), cudaSuccess);
  }
  Gather(parts);
  for (const auto& p : parts) {
    EXPECT_EQ(BatchNormApply({p->y.data(), p->mean.floats(), p->rstd.floats(), p->variance.floats(),
                              p->state.data()},
                             p->x.data(), adds ? p->x.data() : nullptr, bias_on.data(),
                             gain_on.data(), kEpsilon, p->shape, p->workspace.data(), nullptr),
              cudaSuccess);
  }
  for (const auto& p : parts) {
    EXPECT_EQ(BatchNormGradSums(p->gradients(adds), p->dy.data(), /*dy_second=*/nullptr,
                                p->x.data(), adds ? p->y.data() : nullptr, p->mean.floats(),
                                p->state.data(), p->shape, p->workspace.data(), nullptr),
              cudaSuccess);
  }
  Gather(parts);
  for (const auto& p : parts) {
    EXPECT_EQ(BatchNormGradApply(p->gradients(adds), p->dy.data(), p->x.data(), p->mean.floats(),
                                 p->rstd.floats(), p->state.data(), p->shape, p->workspace.data(),
                                 nullptr),
              cudaSuccess);
  }
  return parts;
}

void ExpectNear(const Floats& values, const Floats& wanted, double tolerance) {
  ASSERT_EQ(values.size(), wanted.size());
  double largest = 1;
  for (const float v : wanted) largest = std::max<double>(largest, std::abs(v));
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(values[i], wanted[i], tolerance * largest) << i;
  }
}

TEST(SynchronisedBatchNormTest, PartsOfABatchGiveWhatTheBatchGives) {
  constexpr int64_t kBatch = 9;
  for (const ChannelOrder order : {ChannelOrder::kFirst, ChannelOrder::kLast}) {
    BatchNormShape shape{kBatch, /*channels=*/5, /*pixels=*/6, order, Type::kF32};
    const int64_t row = shape.channels * shape.pixels;
    const Floats x = Normals(kBatch * row, 1), dy = Normals(kBatch * row, 2);
    const Floats gain = Normals(shape.channels, 3), bias = Normals(shape.channels, 4);
    for (const Form form : {Form::kPlain, Form::kRelu, Form::kAddRelu}) {
      shape.activation =
          form == Form::kPlain ? BatchNormActivation::kNone : BatchNormActivation::kRelu;
      const auto whole = RunInParts({kBatch}, shape, form, x, dy, bias, gain);
      for (const std::vector<int64_t>& samples :
           std::vector<std::vector<int64_t>>{{5, 4}, {1, 8}, {3, 2, 2, 2}}) {
        const auto parts = RunInParts(samples, shape, form, x, dy, bias, gain);
        Floats y, dx, dbias(shape.channels), dgain(shape.channels);
        for (const auto& p : parts) {
          const Floats of_y = p->y.Read(Type::kF32), of_dx = p->dx.Read(Type::kF32);
          y.insert(y.end(), of_y.begin(), of_y.end());
          dx.insert(dx.end(), of_dx.begin(), of_dx.end());
          for (int64_t c = 0; c < shape.channels; ++c) {
            dbias[c] += p->dbias.Read(Type::kF32)[c];
            dgain[c] += p->dgain.Read(Type::kF32)[c];
          }
          ExpectNear(p->mean.Read(Type::kF32), whole[0]->mean.Read(Type::kF32), 1e-6);
          ExpectNear(p->rstd.Read(Type::kF32), whole[0]->rstd.Read(Type::kF32), 1e-6);
          ExpectNear(p->variance.Read(Type::kF32), whole[0]->variance.Read(Type::kF32), 1e-6);
        }
        ExpectNear(y, whole[0]->y.Read(Type::kF32), 1e-6);
        ExpectNear(dx, whole[0]->dx.Read(Type::kF32), 1e-6);
        ExpectNear(dbias, whole[0]->dbias.Read(Type::kF32), 1e-6);
        ExpectNear(dgain, whole[0]->dgain.Read(Type::kF32), 1e-6);
      }
    }
  }
}

// Each device has another pivot, so the means must be merged without rounding to f32.
TEST(SynchronisedBatchNormTest, PartsFarFromZeroKeepTheirVariance) {
  constexpr int64_t kBatch = 400;
  const BatchNormShape shape{kBatch, /*channels=*/1, /*pixels=*/1, ChannelOrder::kLast, Type::kF32};
  Floats x = Normals(kBatch, 1);
  for (float& v : x) v += 10000;
  const reference::BatchNorm expected(Wide(x), 0, kBatch, 1, 1);
  const auto parts =
      RunInParts({101, 100, 100, 99}, shape, Form::kPlain, x, Normals(kBatch, 2), {0}, {1});
  EXPECT_NEAR(parts[0]->variance.Read(Type::kF32)[0], expected.variance[0], 1e-5);
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
