#include "lib/data/image/resample.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd_level.h"
#include "lib/data/image/resample_loops.h"

namespace muster {
namespace {

constexpr int kWeightBits = 22;
constexpr int kLowBits = 11;

const kernels::ResampleLoops& Loops() {
  return kernels::ForThisProcessor(kernels::baseline::kResampleLoops, kernels::avx2::kResampleLoops,
                                   kernels::avx512::kResampleLoops);
}

double FilterSupport(ResampleFilter filter) {
  return filter == ResampleFilter::kBicubic ? 2.0 : 1.0;
}

double FilterAt(ResampleFilter filter, double x) {
  x = std::abs(x);
  if (filter == ResampleFilter::kBilinear) return x < 1 ? 1 - x : 0;
  constexpr double kA = -0.5;
  if (x < 1) return ((kA + 2) * x - (kA + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0;
}

// The inputs [first, first + count) of one output, and the place of the filter among them.
struct Taps {
  int first;
  int count;
  double center;
};

struct Scale {
  Scale(int from, int to, ResampleFilter filter)
      : inputs(from),
        step(static_cast<double>(from) / to),
        stretch(std::max(step, 1.0)),
        support(FilterSupport(filter) * stretch) {}

  Taps Of(int output) const {
    const double center = (output + 0.5) * step;
    const int first = std::max(0, static_cast<int>(center - support + 0.5));
    const int last = std::min(inputs, static_cast<int>(center + support + 0.5));
    return {.first = first, .count = last - first, .center = center};
  }

  const int inputs;
  const double step;
  const double stretch;
  const double support;
};

// Calls to(i, input) for the input of each output of [0, first + count), i counted from `first`.
// Pillow adds up the step, which rounds otherwise than a product.
template <typename F>
void NearestInputs(int from, int to, int first, int count, F f) {
  const double step = static_cast<double>(from) / to;
  double at = step * 0.5;
  for (int i = 0; i < first + count; ++i, at += step) {
    if (i >= first) f(i - first, std::min(static_cast<int>(at), from - 1));
  }
}

struct Interval {
  int first;
  int count;
};

Interval InputsOf(int from, int to, int first, int count, ResampleFilter filter) {
  if (filter == ResampleFilter::kNearest) {
    int least = from, most = 0;
    NearestInputs(from, to, first, count, [&](int, int input) {
      least = std::min(least, input);
      most = std::max(most, input);
    });
    return {least, most + 1 - least};
  }
  const Scale scale(from, to, filter);
  const Taps left = scale.Of(first), right = scale.Of(first + count - 1);
  return {left.first, right.first + right.count - left.first};
}

}  // namespace

PixelView ViewOf(const Image& image, int left, int top) {
  const int64_t row = int64_t{image.region.width} * image.channels;
  return {.data = image.bytes.data() + top * row + int64_t{left} * image.channels,
          .row = row,
          .pixel = image.channels,
          .channel = 1,
          .channels = image.channels};
}

Region Resampler::Source(const ResampleOptions& options) {
  const Region& window = options.window;
  if (options.from == options.to) return window;
  const Interval columns =
      InputsOf(options.from.width, options.to.width, window.left, window.width, options.filter);
  const Interval rows =
      InputsOf(options.from.height, options.to.height, window.top, window.height, options.filter);
  return {.left = columns.first, .top = rows.first, .width = columns.count, .height = rows.count};
}

// Computes the weights of outputs [first, first + count). Starts count from the first input.
void Resampler::ComputeTaps(int from, int to, int first, int count, ResampleFilter filter,
                            Axis& axis) {
  const Scale scale(from, to, filter);
  axis.stride = (static_cast<int64_t>(std::ceil(scale.support)) * 2 + 1 + 3) / 4 * 4;
  axis.starts.resize(count);
  axis.counts.resize(count);
  axis.weights.assign(count * axis.stride, 0);
  std::vector<double> values(axis.stride);
  const int base = scale.Of(first).first;
  for (int i = 0; i < count; ++i) {
    const Taps taps = scale.Of(first + i);
    double sum = 0;
    for (int t = 0; t < taps.count; ++t) {
      const double at = (t + taps.first - taps.center + 0.5) * (1 / scale.stretch);
      values[t] = FilterAt(filter, at);
      sum += values[t];
    }
    int32_t* const weights = axis.weights.data() + i * axis.stride;
    for (int t = 0; t < taps.count; ++t) {
      const double value = (sum != 0 ? values[t] / sum : values[t]) * (1 << kWeightBits);
      weights[t] = static_cast<int32_t>(value < 0 ? value - 0.5 : value + 0.5);
    }
    axis.starts[i] = taps.first - base;
    axis.counts[i] = taps.count;
  }
}

// Gives every output the same number of pairs, so that the loop has no branches. An output near the
// end starts earlier, with weights of 0, so that it reads nothing behind the row.
void Resampler::SplitWeights(const Axis& axis, RgbAxis& rgb) {
  const int outputs = static_cast<int>(axis.starts.size());
  int32_t count_max = 0, end = 0;
  for (int i = 0; i < outputs; ++i) {
    count_max = std::max(count_max, axis.counts[i]);
    end = std::max(end, axis.starts[i] + axis.counts[i]);
  }
  constexpr int kBlock = kernels::RgbTaps::kBlock;
  const int padded = (outputs + kBlock - 1) / kBlock * kBlock;
  rgb.pairs = (count_max + 1) / 2;
  rgb.starts.assign(padded, 0);
  rgb.parts.assign(padded * rgb.pairs * 16, 0);
  for (int i = 0; i < outputs; ++i) {
    const int start =
        std::max(0, std::min<int>(axis.starts[i], end - static_cast<int>(2 * rgb.pairs)));
    const int shift = axis.starts[i] - start;
    rgb.starts[i] = start;
    const int32_t* const weights = axis.weights.data() + i * axis.stride;
    int16_t* const parts =
        rgb.parts.data() + 32 * rgb.pairs * (i / kBlock * 4 + i % 4) + 8 * (i % kBlock / 4);
    for (int t = 0; t < axis.counts[i]; ++t) {
      const auto high = static_cast<int16_t>(weights[t] >> kLowBits);
      const auto low = static_cast<int16_t>(weights[t] & ((1 << kLowBits) - 1));
      int16_t* const part = parts + 32 * ((t + shift) / 2) + (t + shift) % 2;
      for (int c = 0; c < 3; ++c) {
        part[2 * c] = high;
        part[16 + 2 * c] = low;
      }
    }
  }
}

void Resampler::Nearest(const ResampleOptions& options, const PixelView& from, uint8_t* to) {
  const Region& window = options.window;
  const Region source = Source(options);
  auto compute = [&](int inputs, int outputs, int first, int count, int base, bool is_flipped,
                     std::vector<int32_t>& starts) {
    starts.resize(count);
    NearestInputs(inputs, outputs, first, count,
                  [&](int i, int input) { starts[is_flipped ? count - 1 - i : i] = input - base; });
  };
  compute(options.from.width, options.to.width, window.left, window.width, source.left,
          options.is_flipped_horizontally, columns_.starts);
  compute(options.from.height, options.to.height, window.top, window.height, source.top,
          options.is_flipped_vertically, rows_.starts);
  for (int c = 0; c < from.channels; ++c) {
    for (int y = 0; y < window.height; ++y) {
      const uint8_t* const row = from.data + rows_.starts[y] * from.row + c * from.channel;
      for (int x = 0; x < window.width; ++x) *to++ = row[columns_.starts[x] * from.pixel];
    }
  }
}

void Resampler::Copy(const ResampleOptions& options, const PixelView& from, uint8_t* to) {
  const int width = options.window.width, height = options.window.height;
  for (int c = 0; c < from.channels; ++c) {
    for (int y = 0; y < height; ++y) {
      const int at = options.is_flipped_vertically ? height - 1 - y : y;
      const uint8_t* const row = from.data + at * from.row + c * from.channel;
      if (options.is_flipped_horizontally) {
        for (int x = 0; x < width; ++x) to[x] = row[(width - 1 - x) * from.pixel];
      } else {
        for (int x = 0; x < width; ++x) to[x] = row[x * from.pixel];
      }
      to += width;
    }
  }
}

void Resampler::Resample(const ResampleOptions& options, const PixelView& from, uint8_t* to) {
  if (options.from == options.to) return Copy(options, from, to);
  if (options.filter == ResampleFilter::kNearest) return Nearest(options, from, to);

  const Region& window = options.window;
  ComputeTaps(options.from.width, options.to.width, window.left, window.width, options.filter,
              columns_);
  ComputeTaps(options.from.height, options.to.height, window.top, window.height, options.filter,
              rows_);
  if (options.is_flipped_horizontally) {
    // Reversed outputs cost nothing, so the rows come out flipped.
    std::reverse(columns_.starts.begin(), columns_.starts.end());
    std::reverse(columns_.counts.begin(), columns_.counts.end());
    for (int i = 0, j = window.width - 1; i < j; ++i, --j) {
      std::swap_ranges(columns_.weights.begin() + i * columns_.stride,
                       columns_.weights.begin() + (i + 1) * columns_.stride,
                       columns_.weights.begin() + j * columns_.stride);
    }
  }
  const bool is_rgb = from.channels == 3 && from.pixel == 3;
  if (is_rgb) SplitWeights(columns_, rgb_columns_);
  const kernels::ResampleTaps taps = {.starts = columns_.starts.data(),
                                      .counts = columns_.counts.data(),
                                      .weights = columns_.weights.data(),
                                      .stride = columns_.stride};
  const kernels::RgbTaps rgb_taps = {.starts = rgb_columns_.starts.data(),
                                     .parts = rgb_columns_.parts.data(),
                                     .pairs = rgb_columns_.pairs};
  // Each row has its channels one after the other, in whole vectors.
  const int64_t plane = (window.width + 31) / 32 * 32;
  const int64_t row_bytes = plane * from.channels;
  const int source_rows = rows_.starts.back() + rows_.counts.back();
  uint8_t* const rows = resampled_rows_.Reserve(row_bytes * source_rows);
  for (int y = 0; y < source_rows; ++y) {
    const uint8_t* const row = from.data + y * from.row;
    if (is_rgb) {
      Loops().horizontal_rgb(rows + y * row_bytes, plane, row, rgb_taps,
                             static_cast<int64_t>(rgb_columns_.starts.size()));
      continue;
    }
    for (int c = 0; c < from.channels; ++c) {
      Loops().horizontal_plane(rows + y * row_bytes + c * plane, row + c * from.channel, taps,
                               window.width);
    }
  }
  for (int y = 0; y < window.height; ++y) {
    const int out = options.is_flipped_vertically ? window.height - 1 - y : y;
    for (int c = 0; c < from.channels; ++c) {
      Loops().vertical(to + (int64_t{c} * window.height + out) * window.width,
                       rows + rows_.starts[y] * row_bytes + c * plane, row_bytes,
                       rows_.weights.data() + y * rows_.stride, rows_.counts[y], window.width);
    }
  }
}

void Resampler::Trim(int64_t bytes) {
  resampled_rows_.Trim(bytes);
  for (Axis* axis : {&columns_, &rows_}) {
    if (static_cast<int64_t>(axis->weights.capacity() * 4) > bytes) *axis = Axis();
  }
  if (static_cast<int64_t>(rgb_columns_.parts.capacity() * 2) > bytes) rgb_columns_ = RgbAxis();
}

}  // namespace muster
