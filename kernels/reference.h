// Functions of the kernels in float64, written to be read. Tests compare the kernels with them.
// Shapes and meanings are those of the kernels' headers. Derivatives use the textbook formula, not
// the kernels' rearrangements.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace muster::kernels::reference {

using Doubles = std::vector<double>;
using Ids = std::vector<int32_t>;

// Returns a[rows, inner] b[inner, columns].
inline Doubles Product(const Doubles& a, const Doubles& b, int64_t rows, int64_t inner,
                       int64_t columns) {
  Doubles c(rows * columns, 0.0);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < inner; ++k) {
      for (int64_t j = 0; j < columns; ++j)
        c[i * columns + j] += a[i * inner + k] * b[k * columns + j];
    }
  }
  return c;
}

inline Doubles Transpose(const Doubles& a, int64_t rows, int64_t columns) {
  Doubles t(a.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) t[j * rows + i] = a[i * columns + j];
  }
  return t;
}

inline Doubles SumRows(const Doubles& x, int64_t rows, int64_t n) {
  Doubles sum(n, 0.0);
  for (int64_t i = 0; i < rows * n; ++i) sum[i % n] += x[i];
  return sum;
}

inline Doubles Softmax(const Doubles& x) {
  double max = x[0], sum = 0;
  for (double v : x) max = std::max(max, v);
  Doubles p;
  for (double v : x) sum += p.emplace_back(std::exp(v - max));
  for (double& v : p) v /= sum;
  return p;
}

// Shape is kernels::Conv2dShape.
template <typename Shape>
struct Convolution {
  Shape s;

  // Calls f(index in y, index in x, index in w) for every product of the cross-correlation.
  template <typename F>
  void ForEachProduct(F f) const {
    const int64_t inputs = s.channels / s.groups, outputs = s.outputs / s.groups;
    int64_t out = 0;
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t o = 0; o < s.outputs; ++o)
        for (int64_t row = 0; row < s.output_height(); ++row)
          for (int64_t column = 0; column < s.output_width(); ++column, ++out)
            for (int64_t c = 0; c < inputs; ++c)
              for (int64_t i = 0; i < s.kernel[0]; ++i)
                for (int64_t j = 0; j < s.kernel[1]; ++j) {
                  const int64_t in_row = row * s.strides[0] + i * s.dilations[0] - s.padding[0];
                  const int64_t in_column =
                      column * s.strides[1] + j * s.dilations[1] - s.padding[1];
                  if (in_row < 0 || in_row >= s.height || in_column < 0 || in_column >= s.width)
                    continue;
                  const int64_t channel = o / outputs * inputs + c;
                  f(out, ((b * s.channels + channel) * s.height + in_row) * s.width + in_column,
                    ((o * inputs + c) * s.kernel[0] + i) * s.kernel[1] + j);
                }
  }
};

// Shape is kernels::PoolShape.
template <typename Shape>
struct Pooling {
  Shape s;

  // Calls f(index in y, index in x) for the pixels of every window that are inside the image, in
  // order.
  template <typename F>
  void ForEachPair(F f) const {
    int64_t out = 0;
    for (int64_t plane = 0; plane < s.batch * s.channels; ++plane)
      for (int64_t row = 0; row < s.output_height(); ++row)
        for (int64_t column = 0; column < s.output_width(); ++column, ++out)
          for (int64_t i = 0; i < s.kernel[0]; ++i)
            for (int64_t j = 0; j < s.kernel[1]; ++j) {
              const int64_t in_row = row * s.strides[0] + i * s.dilations[0] - s.padding[0];
              const int64_t in_column = column * s.strides[1] + j * s.dilations[1] - s.padding[1];
              if (in_row < 0 || in_row >= s.height || in_column < 0 || in_column >= s.width)
                continue;
              f(out, (plane * s.height + in_row) * s.width + in_column);
            }
  }
};

// x[B, C, P]: normalised over B and P.
struct BatchNorm {
  int64_t batch, channels, pixels;
  Doubles mean, rstd, variance, normal;  // unbiased variance; normal: before gain and bias

  BatchNorm(const Doubles& x, double epsilon, int64_t batch, int64_t channels, int64_t pixels)
      : batch(batch), channels(channels), pixels(pixels), normal(x.size()) {
    const double n = double(batch) * pixels;
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0, squares = 0;
      ForEachOf(c, [&](int64_t i) { sum += x[i]; });
      ForEachOf(c, [&](int64_t i) { squares += std::pow(x[i] - sum / n, 2); });
      mean.push_back(sum / n);
      variance.push_back(n > 1 ? squares / (n - 1) : 0);
      rstd.push_back(1 / std::sqrt(squares / n + epsilon));
      ForEachOf(c, [&](int64_t i) { normal[i] = (x[i] - sum / n) * rstd[c]; });
    }
  }

  // Calls f(index in x) for every element of channel c.
  template <typename F>
  void ForEachOf(int64_t c, F f) const {
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t p = 0; p < pixels; ++p) f((b * channels + c) * pixels + p);
  }

  int64_t ChannelOf(int64_t i) const { return i / pixels % channels; }

  // dx = rstd (g dy - mean(g dy) - normal mean(g dy normal)), means over the channel.
  Doubles GradInput(const Doubles& dy, const Doubles& gain) const {
    Doubles dx(dy.size());
    const double n = double(batch) * pixels;
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0, dot = 0;
      ForEachOf(c, [&](int64_t i) { sum += dy[i] * gain[c]; });
      ForEachOf(c, [&](int64_t i) { dot += dy[i] * gain[c] * normal[i]; });
      ForEachOf(c, [&](int64_t i) {
        dx[i] = rstd[c] * (dy[i] * gain[c] - sum / n - normal[i] * dot / n);
      });
    }
    return dx;
  }
};

struct Normalized {
  Doubles y, mean, rstd, normal;  // normal: before gain and bias
};

inline Normalized LayerNorm(const Doubles& x, const Doubles& gain, const Doubles& bias,
                            double epsilon, int64_t rows, int64_t channels) {
  Normalized out;
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < channels; ++c) mean += x[r * channels + c] / channels;
    for (int64_t c = 0; c < channels; ++c)
      variance += std::pow(x[r * channels + c] - mean, 2) / channels;
    const double rstd = 1 / std::sqrt(variance + epsilon);
    out.mean.push_back(mean);
    out.rstd.push_back(rstd);
    for (int64_t c = 0; c < channels; ++c) {
      const double normal = out.normal.emplace_back((x[r * channels + c] - mean) * rstd);
      out.y.push_back(normal * gain[c] + bias[c]);
    }
  }
  return out;
}

// dx = rstd (g dy - mean(g dy) - normal mean(g dy normal)), means over the channels.
inline Doubles LayerNormGradInput(const Doubles& dy, const Doubles& gain, const Normalized& forward,
                                  int64_t rows, int64_t channels) {
  Doubles dx;
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0, dot = 0;
    for (int64_t c = 0; c < channels; ++c) {
      const double term = dy[r * channels + c] * gain[c] / channels;
      sum += term;
      dot += term * forward.normal[r * channels + c];
    }
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t i = r * channels + c;
      dx.push_back(forward.rstd[r] * (dy[i] * gain[c] - sum - forward.normal[i] * dot));
    }
  }
  return dx;
}

}  // namespace muster::kernels::reference
