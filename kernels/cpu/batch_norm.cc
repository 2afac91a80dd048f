// Moments are computed plane by plane, while a plane is in the cache, and combined over the batch
// in double. So x is read from memory once for them. oneDNN's kernel reads it twice.
#include "kernels/batch_norm.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/image_order.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/plane_loops.h"
#include "kernels/cpu/simd_level.h"

namespace muster::kernels {
namespace {

const PlaneLoops& Loops() {
  return ForThisProcessor(baseline::kPlaneLoops, avx2::kPlaneLoops, avx512::kPlaneLoops);
}

// Returns the order of x. With one pixel per channel a sample is a row of channels.
ImageOrder OrderOf(const BatchNormShape& s) {
  if (s.layout.is_row_major() && s.pixels == 1) return {.blocks = 1, .lanes = s.channels};
  return ImageOrder::Of(s.layout, s.channels);
}

// The workspace: vectors of all channels, including the gaps of the last block, and two sums per
// plane and channel.
class Workspace {
 public:
  Workspace(const BatchNormShape& s, std::byte* memory)
      : channels_(OrderOf(s).channels()),
        batch_(s.batch),
        floats_(reinterpret_cast<float*>(memory)) {}

  static int64_t Bytes(const BatchNormShape& s) {
    return (kVectors + 2 * s.batch) * OrderOf(s).channels() * sizeof(float);
  }

  float* center() const { return Vector(0); }
  float* slope() const { return Vector(1); }
  float* offset() const { return Vector(2); }
  float* mean() const { return Vector(3); }
  float* tilt() const { return Vector(4); }
  float* sums(int64_t b) const { return Vector(kVectors + b); }
  float* more_sums(int64_t b) const { return Vector(kVectors + batch_ + b); }

  // Clears the vectors; gaps keep the zeros.
  void ClearVectors() const { std::fill_n(floats_, kVectors * channels_, 0.0f); }

 private:
  static constexpr int64_t kVectors = 5;

  float* Vector(int64_t i) const { return floats_ + i * channels_; }

  int64_t channels_;
  int64_t batch_;
  float* floats_;
};

// Calls f(b, first value of the plane, its first channel, plane) for every plane, in parallel.
template <typename F>
void ForEachPlane(const BatchNormShape& s, F f) {
  const ImageOrder order = OrderOf(s);
  const Plane plane{.pixels = s.pixels, .stride = order.lanes, .lanes = order.lanes};
  const int64_t values = s.pixels * order.lanes;
  ParallelFor(s.batch * order.blocks, std::max<int64_t>(1, 4096 / values),
              [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  f(i / order.blocks, i * values, i % order.blocks * order.lanes, plane);
                }
              });
}

// Calls f(c) for every channel, in parallel.
template <typename F>
void ForEachChannel(const BatchNormShape& s, F f) {
  ParallelFor(s.channels, 256, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) f(c);
  });
}

float Gain(const float* gain, int64_t c) { return gain == nullptr ? 1.0f : gain[c]; }

void Normalise(float* y, const float* x, const Workspace& w, const BatchNormShape& shape,
               BatchNormActivation activation) {
  auto* loop =
      activation == BatchNormActivation::kRelu ? Loops().normalise_relu : Loops().normalise;
  ForEachPlane(shape, [&](int64_t, int64_t at, int64_t c, Plane plane) {
    loop(y + at, x + at, {w.center() + c, w.slope() + c, w.offset() + c}, plane);
  });
}

}  // namespace

int64_t BatchNormWorkspaceBytes(const BatchNormShape& shape) { return Workspace::Bytes(shape); }

void BatchNorm(const BatchNormOutputs& out, const float* x, const float* bias, const float* gain,
               float epsilon, const BatchNormShape& shape, BatchNormActivation activation,
               std::byte* workspace) {
  const Workspace w(shape, workspace);
  const PlaneLoops& loops = Loops();
  // Computes for each plane the mean of each channel and the sum of squares around it.
  ForEachPlane(shape, [&](int64_t b, int64_t at, int64_t c, Plane plane) {
    float* means = w.sums(b) + c;
    loops.sum(means, x + at, plane);
    for (int64_t lane = 0; lane < plane.lanes; ++lane) means[lane] /= plane.pixels;
    loops.squares(w.more_sums(b) + c, x + at, means, plane);
  });

  w.ClearVectors();
  const double n = double(shape.batch) * shape.pixels;
  ForEachChannel(shape, [&](int64_t c) {
    double mean = 0, squares = 0;
    for (int64_t b = 0; b < shape.batch; ++b) mean += w.sums(b)[c];
    mean /= shape.batch;
    for (int64_t b = 0; b < shape.batch; ++b) {
      const double apart = w.sums(b)[c] - mean;
      squares += w.more_sums(b)[c] + shape.pixels * apart * apart;
    }
    out.mean[c] = mean;
    out.rstd[c] = 1 / std::sqrt(squares / n + epsilon);
    out.variance[c] = n > 1 ? squares / (n - 1) : 0;
    out.state[c] = bias[c];
    w.center()[c] = out.mean[c];
    w.slope()[c] = Gain(gain, c) * out.rstd[c];
    w.offset()[c] = bias[c];
  });
  Normalise(out.y, x, w, shape, activation);
}

void BatchNormGrad(const BatchNormGradients& out, const float* dy, const float* x,
                   const float* mean, const float* rstd, const float* state, const float* gain,
                   const BatchNormShape& shape, BatchNormActivation activation,
                   std::byte* workspace) {
  const Workspace w(shape, workspace);
  const PlaneLoops& loops = Loops();
  const bool relu = activation == BatchNormActivation::kRelu;
  auto* grad_sums = relu ? loops.grad_sums_relu : loops.grad_sums;
  auto* grad_input = relu ? loops.grad_input_relu : loops.grad_input;
  auto line = [&](int64_t c) {
    return PlaneLoops::Line{w.center() + c, w.slope() + c, w.offset() + c};
  };

  // Computes the same numbers as the forward pass, so that the same elements are above 0.
  w.ClearVectors();
  ForEachChannel(shape, [&](int64_t c) {
    w.center()[c] = mean[c];
    w.slope()[c] = Gain(gain, c) * rstd[c];
    w.offset()[c] = state[c];
  });
  ForEachPlane(shape, [&](int64_t b, int64_t at, int64_t c, Plane plane) {
    grad_sums(w.sums(b) + c, w.more_sums(b) + c, dy + at, x + at, line(c), plane);
  });

  const double n = double(shape.batch) * shape.pixels;
  ForEachChannel(shape, [&](int64_t c) {
    double sum = 0, dot = 0;
    for (int64_t b = 0; b < shape.batch; ++b) {
      sum += w.sums(b)[c];
      dot += w.more_sums(b)[c];
    }
    out.dbias[c] = sum;
    if (out.dgain != nullptr) out.dgain[c] = dot * rstd[c];
    w.mean()[c] = sum / n;
    w.tilt()[c] = dot * rstd[c] * rstd[c] / n;
  });
  ForEachPlane(shape, [&](int64_t, int64_t at, int64_t c, Plane plane) {
    grad_input(out.dx + at, dy + at, x + at, line(c), {w.mean() + c, w.tilt() + c}, plane);
  });
}

void BatchNormInference(float* y, const float* x, const float* mean, const float* variance,
                        const float* bias, const float* gain, float epsilon,
                        const BatchNormShape& shape, std::byte* workspace) {
  const Workspace w(shape, workspace);
  w.ClearVectors();
  ForEachChannel(shape, [&](int64_t c) {
    w.center()[c] = mean[c];
    w.slope()[c] = Gain(gain, c) / std::sqrt(variance[c] + epsilon);
    w.offset()[c] = bias[c];
  });
  Normalise(y, x, w, shape, BatchNormActivation::kNone);
}

}  // namespace muster::kernels
