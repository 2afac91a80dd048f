#include "kernels/pooling.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "kernels/cpu/image_order.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/plane_loops.h"
#include "kernels/cpu/pooling_loops.h"
#include "kernels/cpu/simd_level.h"

namespace muster::kernels {
namespace {

const PoolingLoops& Loops() {
  return ForThisProcessor(baseline::kPoolingLoops, avx2::kPoolingLoops, avx512::kPoolingLoops);
}

const PlaneLoops& Planes() {
  return ForThisProcessor(baseline::kPlaneLoops, avx2::kPlaneLoops, avx512::kPlaneLoops);
}

PoolWindows WindowsOf(const PoolShape& s, bool counts_padding) {
  return {.lanes = ImageOrder::Of(s.layout, s.channels).lanes,
          .height = s.height,
          .width = s.width,
          .output_height = s.output_height(),
          .output_width = s.output_width(),
          .kernel = {s.kernel[0], s.kernel[1]},
          .strides = {s.strides[0], s.strides[1]},
          .padding = {s.padding[0], s.padding[1], s.padding[2], s.padding[3]},
          .counts_padding = counts_padding,
          .dilations = {s.dilations[0], s.dilations[1]}};
}

// Returns the number of values of y, including the gaps of its layout.
int64_t OutputValues(const PoolShape& s) {
  return s.batch * ImageOrder::Of(s.layout, s.channels).channels() * s.output_height() *
         s.output_width();
}

// Calls f(first value in x, first value in y, windows) for every plane, in parallel.
template <typename F>
void ForEachPlane(const PoolShape& s, bool counts_padding, F f) {
  const PoolWindows windows = WindowsOf(s, counts_padding);
  const int64_t inputs = s.height * s.width * windows.lanes;
  const int64_t outputs = windows.output_height * windows.output_width * windows.lanes;
  const int64_t planes = s.batch * ImageOrder::Of(s.layout, s.channels).blocks;
  ParallelFor(planes, std::max<int64_t>(1, 4096 / inputs), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i * inputs, i * outputs, windows);
  });
}

constexpr int64_t kStrip = 64;  // maximum number of lanes in a strip

// Calls f(first value of x, first channel in y, plane) for strips of the planes of x, in parallel.
// A strip has at most `kStrip` lanes.
template <typename F>
void ForEachStrip(int64_t batch, int64_t channels, int64_t pixels, const Layout& layout, F f) {
  const ImageOrder order = ImageOrder::Of(layout, channels);
  ParallelFor(batch * order.blocks, std::max<int64_t>(1, 4096 / (pixels * order.lanes)),
              [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t b = i / order.blocks, block = i % order.blocks;
                  for (int64_t lane = 0; lane < order.lanes; lane += kStrip) {
                    f(i * pixels * order.lanes + lane, b, block * order.lanes + lane,
                      Plane{pixels, order.lanes, std::min(kStrip, order.lanes - lane)});
                  }
                }
              });
}

}  // namespace

Layout PoolOutputLayout(const PoolShape& s) {
  return ImageLayout(ImageOrder::Of(s.layout, s.channels), s.batch, s.channels, s.output_height(),
                     s.output_width());
}

int64_t MaxPoolStateBytes(const PoolShape& shape) {
  if (shape.kernel[0] * shape.kernel[1] > UINT16_MAX) {
    std::fprintf(stderr, "a window of %ld x %ld is too large for max pooling\n",
                 long(shape.kernel[0]), long(shape.kernel[1]));
    std::abort();
  }
  return OutputValues(shape) * sizeof(uint16_t);
}

void MaxPool2d(float* y, std::byte* state, const float* x, const PoolShape& shape) {
  uint16_t* places = reinterpret_cast<uint16_t*>(state);
  ForEachPlane(shape, false, [&](int64_t in, int64_t out, const PoolWindows& windows) {
    Loops().max(y + out, places + out, x + in, windows);
  });
}

void MaxPool2dGrad(float* dx, const float* dy, const std::byte* state, const PoolShape& shape) {
  const uint16_t* places = reinterpret_cast<const uint16_t*>(state);
  ForEachPlane(shape, false, [&](int64_t in, int64_t out, const PoolWindows& windows) {
    Loops().max_grad(dx + in, dy + out, places + out, windows);
  });
}

void AveragePool2d(float* y, const float* x, const PoolShape& shape, PoolDivisor divisor) {
  ForEachPlane(shape, divisor == PoolDivisor::kPadded,
               [&](int64_t in, int64_t out, const PoolWindows& windows) {
                 Loops().average(y + out, x + in, windows);
               });
}

void AveragePool2dGrad(float* dx, const float* dy, const PoolShape& shape, PoolDivisor divisor) {
  ForEachPlane(shape, divisor == PoolDivisor::kPadded,
               [&](int64_t in, int64_t out, const PoolWindows& windows) {
                 Loops().average_grad(dx + in, dy + out, windows);
               });
}

void GlobalAveragePool2d(float* y, const float* x, int64_t batch, int64_t channels, int64_t pixels,
                         const Layout& layout) {
  ForEachStrip(batch, channels, pixels, layout, [&](int64_t at, int64_t b, int64_t c, Plane plane) {
    float sum[kStrip];
    Planes().sum(sum, x + at, plane);
    const int64_t n = std::min(plane.lanes, channels - c);
    for (int64_t k = 0; k < n; ++k) y[b * channels + c + k] = sum[k] / pixels;
  });
}

void GlobalAveragePool2dGrad(float* dx, const float* dy, int64_t batch, int64_t channels,
                             int64_t pixels, const Layout& layout) {
  ForEachStrip(batch, channels, pixels, layout, [&](int64_t at, int64_t b, int64_t c, Plane plane) {
    float value[kStrip] = {};
    const int64_t n = std::min(plane.lanes, channels - c);
    for (int64_t k = 0; k < n; ++k) value[k] = dy[b * channels + c + k] / pixels;
    Planes().fill(dx + at, value, plane);
  });
}

}  // namespace muster::kernels
