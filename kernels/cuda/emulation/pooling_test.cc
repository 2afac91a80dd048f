#include "kernels/cuda/pooling.h"

#include "kernels/cuda/emulation/device_memory.h"
#include "kernels/pooling.h"
#include "kernels/reference.h"

namespace muster::kernels::cuda::emulation::pooling_test {
namespace {

using Windows = kernels::PoolShape;

const std::vector<Windows> kShapes = {
    {1, 1, 1, 1, {1, 1}, {1, 1}},
    {2, 3, 5, 7, {2, 2}, {2, 2}},
    {2, 8, 9, 10, {3, 3}, {2, 2}, {1, 1, 1, 1}},
    {1, 17, 6, 8, {3, 2}, {1, 2}, {1, 0, 2, 1}},
    {2, 16, 6, 5, {3, 3}, {2, 2}, {1, 1, 1, 1}, true},
    {3, 4, 13, 4, {5, 3}, {3, 1}, {2, 1, 2, 1}},
};

// Windows with dilations, which only maximum pooling has.
const std::vector<Windows> kDilated = {
    {2, 16, 9, 8, {3, 2}, {1, 2}, {2, 1, 1, 2}, false, {}, {2, 3}},
    {1, 3, 7, 7, {2, 2}, {2, 2}, {1, 1, 1, 1}, true, {}, {3, 2}},
};

int64_t Inputs(const Windows& s) { return s.batch * s.channels * s.height * s.width; }
int64_t Outputs(const Windows& s) {
  return s.batch * s.channels * s.output_height() * s.output_width();
}

// Converts [B, C, pixels] to [B, pixels, C] and back, if channels are last.
Floats Reordered(const Floats& x, const Windows& s, ChannelOrder order, bool back) {
  if (order == ChannelOrder::kFirst) return x;
  Floats y(x.size());
  const int64_t pixels = static_cast<int64_t>(x.size()) / (s.batch * s.channels);
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
    const int64_t p = i % pixels, c = i / pixels % s.channels, b = i / pixels / s.channels;
    const int64_t last = (b * pixels + p) * s.channels + c;
    y[back ? i : last] = x[back ? last : i];
  }
  return y;
}

// Calls run(windows, the same as a PoolShape).
template <typename F>
void ForEveryShape(const std::vector<Windows>& shapes, F run) {
  ForEveryRun([&](Type type) {
    for (const Windows& s : shapes) {
      for (ChannelOrder order : {ChannelOrder::kFirst, ChannelOrder::kLast}) {
        SCOPED_TRACE(testing::Message() << "image " << s.height << ", " << s.width << ", channels "
                                        << s.channels << ", order " << static_cast<int>(order));
        run(s, PoolShape{.batch = s.batch,
                         .channels = s.channels,
                         .image = {s.height, s.width},
                         .output = {s.output_height(), s.output_width()},
                         .kernel = s.kernel,
                         .strides = s.strides,
                         .padding = s.padding,
                         .order = order,
                         .type = type,
                         .dilations = s.dilations});
      }
    }
  });
}

TEST(PoolingTest, TheFirstMaximumOfAWindowTakesItsGradient) {
  const auto check = [](const Windows& s, const PoolShape& shape) {
    Floats x = Normals(Inputs(s), 1);
    for (float& v : x) v = std::round(2 * v);  // makes some elements equal
    const Floats dy = Rounded(Normals(Outputs(s), 2), shape.type);
    Floats y(Outputs(s), -INFINITY);
    std::vector<int64_t> where(Outputs(s), -1);
    reference::Pooling<Windows>{s}.ForEachPair([&](int64_t out, int64_t in) {
      if (x[in] <= y[out]) return;
      y[out] = x[in];
      where[out] = in;
    });
    std::vector<double> expected_dx(Inputs(s), 0.0);
    for (int64_t out = 0; out < Outputs(s); ++out) expected_dx[where[out]] += dy[out];
    DeviceMemory x_on(Reordered(x, s, shape.order, false), shape.type);
    DeviceMemory dy_on(Reordered(dy, s, shape.order, false), shape.type);
    DeviceMemory y_on(Outputs(s) * Bytes(shape.type)), dx_on(Inputs(s) * Bytes(shape.type));
    DeviceMemory state(Outputs(s) * 4);

    ASSERT_EQ(MaxPool2d(y_on.data(), state.ints(), x_on.data(), shape, nullptr), cudaSuccess);
    ASSERT_EQ(MaxPool2dGrad(dx_on.data(), dy_on.data(), state.ints(), shape, nullptr), cudaSuccess);

    EXPECT_EQ(Reordered(y_on.Read(shape.type), s, shape.order, true), y);
    ExpectRounded(Reordered(dx_on.Read(shape.type), s, shape.order, true), expected_dx, shape.type,
                  4);
  };
  ForEveryShape(kShapes, check);
  ForEveryShape(kDilated, check);
}

TEST(PoolingTest, ANaNIsAMaximum) {
  const PoolShape shape = {1, 1, {3, 3}, {1, 1}, {3, 3}, {3, 3}, {}, false, {}, Type::kF32};
  DeviceMemory x({1, 2, 3, 4, NAN, 9, NAN, 7, 8}, Type::kF32), y(4), state(4);
  ASSERT_EQ(MaxPool2d(y.data(), state.ints(), x.data(), shape, nullptr), cudaSuccess);
  EXPECT_TRUE(std::isnan(y.floats()[0]));
  EXPECT_EQ(state.ints()[0], 4);
}

TEST(PoolingTest, AnAverageIsOverTheImage) {
  ForEveryShape(kShapes, [](const Windows& s, const PoolShape& shape) {
    const Floats x = Rounded(Normals(Inputs(s), 1), shape.type);
    const Floats dy = Rounded(Normals(Outputs(s), 2), shape.type);
    std::vector<double> y(Outputs(s)), count(Outputs(s)), dx(Inputs(s));
    const reference::Pooling<Windows> pooling{s};
    pooling.ForEachPair([&](int64_t out, int64_t in) {
      y[out] += x[in];
      count[out] += 1;
    });
    for (int64_t out = 0; out < Outputs(s); ++out) y[out] /= count[out];
    pooling.ForEachPair([&](int64_t out, int64_t in) { dx[in] += dy[out] / count[out]; });
    DeviceMemory x_on(Reordered(x, s, shape.order, false), shape.type);
    DeviceMemory dy_on(Reordered(dy, s, shape.order, false), shape.type);
    DeviceMemory y_on(Outputs(s) * Bytes(shape.type)), dx_on(Inputs(s) * Bytes(shape.type));

    ASSERT_EQ(AveragePool2d(y_on.data(), x_on.data(), shape, nullptr), cudaSuccess);
    ASSERT_EQ(AveragePool2dGrad(dx_on.data(), dy_on.data(), shape, nullptr), cudaSuccess);

    ExpectRounded(Reordered(y_on.Read(shape.type), s, shape.order, true), y, shape.type, 16);
    ExpectRounded(Reordered(dx_on.Read(shape.type), s, shape.order, true), dx, shape.type, 16);
  });
}

}  // namespace
}  // namespace muster::kernels::cuda::emulation::pooling_test
