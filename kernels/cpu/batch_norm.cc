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

// The workspace: vectors of all channels, including the gaps of the last block, two sums per plane
// and channel, then the sums of this device and of all devices.
class Workspace {
 public:
  Workspace(const BatchNormShape& s, std::byte* memory)
      : channels_(OrderOf(s).channels()),
        batch_(s.batch),
        floats_(reinterpret_cast<float*>(memory)) {}

  static int64_t Bytes(const BatchNormShape& s) {
    const int64_t sums = s.devices == 1 ? 1 : 1 + s.devices;
    return BytesOfVectors(s) + sums * (1 + 2 * s.channels) * int64_t{sizeof(double)};
  }
  // Whole cache lines, so that the sums behind them are aligned.
  static int64_t BytesOfVectors(const BatchNormShape& s) {
    const int64_t bytes = (kVectors + 2 * s.batch) * OrderOf(s).channels() * sizeof(float);
    return (bytes + 63) / 64 * 64;
  }

  float* center() const { return Vector(0); }
  float* slope() const { return Vector(1); }
  float* offset() const { return Vector(2); }
  float* mean() const { return Vector(3); }
  float* tilt() const { return Vector(4); }
  float* sums(int64_t b) const { return Vector(kVectors + b); }
  float* more_sums(int64_t b) const { return Vector(kVectors + batch_ + b); }
  PlaneLoops::Line line(int64_t c) const { return {center() + c, slope() + c, offset() + c}; }

  // Clears the vectors; gaps keep the zeros.
  void ClearVectors() const { std::fill_n(floats_, kVectors * channels_, 0.0f); }

 private:
  static constexpr int64_t kVectors = 5;

  float* Vector(int64_t i) const { return floats_ + i * channels_; }

  int64_t channels_;
  int64_t batch_;
  float* floats_;
};

// The numbers of a device in BatchNormSums: its count of values, then two of every channel. The
// first one is the mean, or the sum of the gradients. The second one is the sum of squares around
// the mean, or the sum of the gradients times the centred x.
class DeviceSums {
 public:
  DeviceSums(double* numbers, int64_t channels) : numbers_(numbers), channels_(channels) {}

  double& count() const { return numbers_[0]; }
  double& first(int64_t c) const { return numbers_[1 + c]; }
  double& second(int64_t c) const { return numbers_[1 + channels_ + c]; }

 private:
  double* numbers_;
  int64_t channels_;
};

DeviceSums OwnSums(const BatchNormShape& s, std::byte* workspace) {
  return {BatchNormSumsIn(s, workspace).own, s.channels};
}

DeviceSums SumsOf(int device, const BatchNormShape& s, std::byte* workspace) {
  const BatchNormSums sums = BatchNormSumsIn(s, workspace);
  return {sums.all + device * sums.size, s.channels};
}

double ValuesOfAll(const BatchNormShape& s, std::byte* workspace) {
  double n = 0;
  for (int device = 0; device < s.devices; ++device) n += SumsOf(device, s, workspace).count();
  return n;
}

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
    loop(y + at, x + at, w.line(c), plane);
  });
}

}  // namespace

int64_t BatchNormWorkspaceBytes(const BatchNormShape& shape) { return Workspace::Bytes(shape); }

BatchNormSums BatchNormSumsIn(const BatchNormShape& shape, std::byte* workspace) {
  auto* own = reinterpret_cast<double*>(workspace + Workspace::BytesOfVectors(shape));
  const int64_t size = 1 + 2 * shape.channels;
  return {.own = own, .all = shape.devices == 1 ? own : own + size, .size = size};
}

void BatchNormMoments(const float* x, const BatchNormShape& shape, std::byte* workspace) {
  const Workspace w(shape, workspace);
  const PlaneLoops& loops = Loops();
  // Computes for each plane the mean of each channel and the sum of squares around it.
  ForEachPlane(shape, [&](int64_t b, int64_t at, int64_t c, Plane plane) {
    float* means = w.sums(b) + c;
    loops.sum(means, x + at, plane);
    for (int64_t lane = 0; lane < plane.lanes; ++lane) means[lane] /= plane.pixels;
    loops.squares(w.more_sums(b) + c, x + at, means, plane);
  });

  const DeviceSums own = OwnSums(shape, workspace);
  own.count() = double(shape.batch) * shape.pixels;
  ForEachChannel(shape, [&](int64_t c) {
    double mean = 0, squares = 0;
    for (int64_t b = 0; b < shape.batch; ++b) mean += w.sums(b)[c];
    mean /= shape.batch;
    for (int64_t b = 0; b < shape.batch; ++b) {
      const double apart = w.sums(b)[c] - mean;
      squares += w.more_sums(b)[c] + shape.pixels * apart * apart;
    }
    own.first(c) = mean;
    own.second(c) = squares;
  });
}

// Merges the moments of the devices as Chan, Golub and LeVeque do ("Updating formulae and a
// pairwise algorithm for computing sample variances", 1979). Raw sums of squares would cancel.
void BatchNormApply(const BatchNormOutputs& out, const float* x, const float* bias,
                    const float* gain, float epsilon, const BatchNormShape& shape,
                    BatchNormActivation activation, std::byte* workspace) {
  const Workspace w(shape, workspace);
  const double n = ValuesOfAll(shape, workspace);
  w.ClearVectors();
  ForEachChannel(shape, [&](int64_t c) {
    double count = 0, mean = 0, squares = 0;
    for (int device = 0; device < shape.devices; ++device) {
      const DeviceSums part = SumsOf(device, shape, workspace);
      const double apart = part.first(c) - mean, before = count;
      count += part.count();
      mean += apart * (part.count() / count);
      squares += part.second(c) + apart * apart * before * (part.count() / count);
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

void BatchNormGradSums(const float* dy, const float* x, const float* mean, const float* rstd,
                       const float* state, const float* gain, const BatchNormShape& shape,
                       BatchNormActivation activation, std::byte* workspace) {
  const Workspace w(shape, workspace);
  auto* grad_sums =
      activation == BatchNormActivation::kRelu ? Loops().grad_sums_relu : Loops().grad_sums;
  // Computes the same numbers as the forward pass, so that the same elements are above 0.
  w.ClearVectors();
  ForEachChannel(shape, [&](int64_t c) {
    w.center()[c] = mean[c];
    w.slope()[c] = Gain(gain, c) * rstd[c];
    w.offset()[c] = state[c];
  });
  ForEachPlane(shape, [&](int64_t b, int64_t at, int64_t c, Plane plane) {
    grad_sums(w.sums(b) + c, w.more_sums(b) + c, dy + at, x + at, w.line(c), plane);
  });

  const DeviceSums own = OwnSums(shape, workspace);
  own.count() = double(shape.batch) * shape.pixels;
  ForEachChannel(shape, [&](int64_t c) {
    own.first(c) = own.second(c) = 0;
    for (int64_t b = 0; b < shape.batch; ++b) {
      own.first(c) += w.sums(b)[c];
      own.second(c) += w.more_sums(b)[c];
    }
  });
}

void BatchNormGradApply(const BatchNormGradients& out, const float* dy, const float* x,
                        const float* rstd, const BatchNormShape& shape,
                        BatchNormActivation activation, std::byte* workspace) {
  const Workspace w(shape, workspace);
  auto* grad_input =
      activation == BatchNormActivation::kRelu ? Loops().grad_input_relu : Loops().grad_input;
  const DeviceSums own = OwnSums(shape, workspace);
  const double n = ValuesOfAll(shape, workspace);
  ForEachChannel(shape, [&](int64_t c) {
    double sum = 0, dot = 0;
    for (int device = 0; device < shape.devices; ++device) {
      sum += SumsOf(device, shape, workspace).first(c);
      dot += SumsOf(device, shape, workspace).second(c);
    }
    // The parameters' gradients are summed with those of the other devices later.
    out.dbias[c] = own.first(c);
    if (out.dgain != nullptr) out.dgain[c] = own.second(c) * rstd[c];
    w.mean()[c] = sum / n;
    w.tilt()[c] = dot * rstd[c] * rstd[c] / n;
  });
  ForEachPlane(shape, [&](int64_t, int64_t at, int64_t c, Plane plane) {
    grad_input(out.dx + at, dy + at, x + at, w.line(c), {w.mean() + c, w.tilt() + c}, plane);
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
