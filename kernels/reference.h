// Every op in float64, written for reading: what the kernels are compared with. Same shapes and
// meanings as the kernels' headers; derivatives by the textbook formula and not by the kernels'
// rearrangements.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

namespace muster::kernels::reference {

using Doubles = std::vector<double>;
using Ids = std::vector<int32_t>;

// a[rows, inner] b[inner, columns]
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

inline double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

inline double GeluDerivative(double x) {
  const double a = std::sqrt(2 / std::numbers::pi);
  const double t = std::tanh(a * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * a * (1 + 3 * 0.044715 * x * x);
}

inline Doubles Softmax(const Doubles& x) {
  double max = x[0], sum = 0;
  for (double v : x) max = std::max(max, v);
  Doubles p;
  for (double v : x) sum += p.emplace_back(std::exp(v - max));
  for (double& v : p) v /= sum;
  return p;
}

struct Convolution {
  int64_t batch, channels, height, width, outputs, kernel, stride, padding;

  int64_t output_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  int64_t output_width() const { return (width + 2 * padding - kernel) / stride + 1; }

  // Calls f(index in y, index in x, index in w) for every product of the cross-correlation.
  template <typename F>
  void ForEachProduct(F f) const {
    int64_t out = 0;
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t o = 0; o < outputs; ++o)
        for (int64_t row = 0; row < output_height(); ++row)
          for (int64_t column = 0; column < output_width(); ++column, ++out)
            for (int64_t c = 0; c < channels; ++c)
              for (int64_t i = 0; i < kernel; ++i)
                for (int64_t j = 0; j < kernel; ++j) {
                  const int64_t in_row = row * stride + i - padding;
                  const int64_t in_column = column * stride + j - padding;
                  if (in_row < 0 || in_row >= height || in_column < 0 || in_column >= width)
                    continue;
                  f(out, ((b * channels + c) * height + in_row) * width + in_column,
                    ((o * channels + c) * kernel + i) * kernel + j);
                }
  }
};

struct Attention {
  int64_t batch, context, channels, heads;

  int64_t Query(int64_t b, int64_t t, int64_t h, int64_t d) const {
    return (b * context + t) * 3 * channels + h * (channels / heads) + d;
  }
  int64_t Key(int64_t b, int64_t t, int64_t h, int64_t d) const {
    return Query(b, t, h, d) + channels;
  }
  int64_t Value(int64_t b, int64_t t, int64_t h, int64_t d) const {
    return Query(b, t, h, d) + 2 * channels;
  }
  int64_t Output(int64_t b, int64_t t, int64_t h, int64_t d) const {
    return (b * context + t) * channels + h * (channels / heads) + d;
  }

  // The weights of positions 0..t for the query at t.
  Doubles Weights(const Doubles& qkv, int64_t b, int64_t h, int64_t t) const {
    Doubles scores(t + 1, 0.0);
    for (int64_t s = 0; s <= t; ++s) {
      for (int64_t d = 0; d < channels / heads; ++d)
        scores[s] += qkv[Query(b, t, h, d)] * qkv[Key(b, s, h, d)];
      scores[s] /= std::sqrt(double(channels / heads));
    }
    return Softmax(scores);
  }

  Doubles Forward(const Doubles& qkv) const {
    Doubles y(batch * context * channels, 0.0);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t t = 0; t < context; ++t) {
          const Doubles p = Weights(qkv, b, h, t);
          for (int64_t s = 0; s <= t; ++s)
            for (int64_t d = 0; d < channels / heads; ++d)
              y[Output(b, t, h, d)] += p[s] * qkv[Value(b, s, h, d)];
        }
    return y;
  }

  Doubles Backward(const Doubles& dy, const Doubles& qkv) const {
    Doubles dqkv(qkv.size(), 0.0);
    const int64_t size = channels / heads;
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t t = 0; t < context; ++t) {
          const Doubles p = Weights(qkv, b, h, t);
          Doubles dp(t + 1, 0.0);
          double mean = 0;
          for (int64_t s = 0; s <= t; ++s) {
            for (int64_t d = 0; d < size; ++d) {
              dp[s] += dy[Output(b, t, h, d)] * qkv[Value(b, s, h, d)];
              dqkv[Value(b, s, h, d)] += p[s] * dy[Output(b, t, h, d)];
            }
            mean += p[s] * dp[s];
          }
          for (int64_t s = 0; s <= t; ++s) {
            const double dscore = p[s] * (dp[s] - mean) / std::sqrt(double(size));
            for (int64_t d = 0; d < size; ++d) {
              dqkv[Query(b, t, h, d)] += dscore * qkv[Key(b, s, h, d)];
              dqkv[Key(b, s, h, d)] += dscore * qkv[Query(b, t, h, d)];
            }
          }
        }
    return dqkv;
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
