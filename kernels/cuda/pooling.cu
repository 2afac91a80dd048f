#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pooling.h"

namespace muster::kernels::cuda {
namespace {

// An element of a [B, C, rows, columns] tensor in memory order, taken apart.
struct Place {
  int64_t batch, channel, row, column;
};

__device__ Place Locate(int64_t i, int64_t channels, const std::array<int64_t, 2>& image,
                        bool channels_last) {
  const int64_t rows = image[0], columns = image[1];
  Place place;
  if (channels_last) {
    place.channel = i % channels;
    i /= channels;
  }
  place.column = i % columns;
  i /= columns;
  place.row = i % rows;
  i /= rows;
  if (!channels_last) {
    place.channel = i % channels;
    i /= channels;
  }
  place.batch = i;
  return place;
}

__device__ int64_t IndexOf(const Place& place, int64_t channels,
                           const std::array<int64_t, 2>& image, bool channels_last) {
  const int64_t rows = image[0], columns = image[1];
  return channels_last ? ((place.batch * rows + place.row) * columns + place.column) * channels +
                             place.channel
                       : ((place.batch * channels + place.channel) * rows + place.row) * columns +
                             place.column;
}

struct Range {
  int64_t first, last;  // last excluded
};

// The rows (dimension 0) or columns of the image under window `output`.
__device__ Range Window(const PoolShape& shape, int dimension, int64_t output) {
  const int64_t start = output * shape.strides[dimension] - shape.padding[dimension];
  return {max(start, int64_t{0}), min(start + shape.kernel[dimension], shape.image[dimension])};
}

// The windows over row or column `position`.
__device__ Range WindowsOver(const PoolShape& shape, int dimension, int64_t position) {
  const int64_t stride = shape.strides[dimension];
  const int64_t padded = position + shape.padding[dimension];
  const int64_t before = padded - shape.kernel[dimension];  // ends before the position
  return {before < 0 ? 0 : before / stride + 1, min(padded / stride + 1, shape.output[dimension])};
}

__device__ float Divisor(const PoolShape& shape, int64_t row, int64_t column) {
  int64_t size = 1;
  const int64_t outputs[2] = {row, column};
  for (int d = 0; d < 2; ++d) {
    if (shape.count_padding) {
      // What sticks out of the padding (ceil) does not count.
      const int64_t start = outputs[d] * shape.strides[d] - shape.padding[d];
      size *= min(start + shape.kernel[d], shape.image[d] + shape.padding[d + 2]) - start;
    } else {
      const Range window = Window(shape, d, outputs[d]);
      size *= window.last - window.first;
    }
  }
  return static_cast<float>(size);
}

template <typename T>
__global__ void MaxAll(T* y, int32_t* state, const T* x, PoolShape shape, int64_t n) {
  const bool channels_last = shape.order == ChannelOrder::kLast;
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    const Place to = Locate(i, shape.channels, shape.output, channels_last);
    const Range rows = Window(shape, 0, to.row), columns = Window(shape, 1, to.column);
    float best = -INFINITY;
    int64_t best_at = -1;
    for (int64_t row = rows.first; row < rows.last; ++row) {
      for (int64_t column = columns.first; column < columns.last; ++column) {
        const Place from = {to.batch, to.channel, row, column};
        const float value = ToFloat(x[IndexOf(from, shape.channels, shape.image, channels_last)]);
        if (best_at < 0 || value > best || (isnan(value) && !isnan(best))) {
          best = value;
          best_at = row * shape.image[1] + column;
        }
      }
    }
    y[i] = FromFloat<T>(best);
    state[i] = static_cast<int32_t>(best_at);
  }
}

template <typename T>
__global__ void MaxGradAll(T* dx, const T* dy, const int32_t* state, PoolShape shape, int64_t n) {
  const bool channels_last = shape.order == ChannelOrder::kLast;
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    const Place to = Locate(i, shape.channels, shape.image, channels_last);
    const Range rows = WindowsOver(shape, 0, to.row), columns = WindowsOver(shape, 1, to.column);
    const int64_t own = to.row * shape.image[1] + to.column;
    float sum = 0;
    for (int64_t row = rows.first; row < rows.last; ++row) {
      for (int64_t column = columns.first; column < columns.last; ++column) {
        const Place from = {to.batch, to.channel, row, column};
        const int64_t at = IndexOf(from, shape.channels, shape.output, channels_last);
        if (state[at] == own) sum += ToFloat(dy[at]);
      }
    }
    dx[i] = FromFloat<T>(sum);
  }
}

template <typename T>
__global__ void AverageAll(T* y, const T* x, PoolShape shape, int64_t n) {
  const bool channels_last = shape.order == ChannelOrder::kLast;
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    const Place to = Locate(i, shape.channels, shape.output, channels_last);
    const Range rows = Window(shape, 0, to.row), columns = Window(shape, 1, to.column);
    float sum = 0;
    for (int64_t row = rows.first; row < rows.last; ++row) {
      for (int64_t column = columns.first; column < columns.last; ++column) {
        const Place from = {to.batch, to.channel, row, column};
        sum += ToFloat(x[IndexOf(from, shape.channels, shape.image, channels_last)]);
      }
    }
    y[i] = FromFloat<T>(sum / Divisor(shape, to.row, to.column));
  }
}

template <typename T>
__global__ void AverageGradAll(T* dx, const T* dy, PoolShape shape, int64_t n) {
  const bool channels_last = shape.order == ChannelOrder::kLast;
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    const Place to = Locate(i, shape.channels, shape.image, channels_last);
    const Range rows = WindowsOver(shape, 0, to.row), columns = WindowsOver(shape, 1, to.column);
    float sum = 0;
    for (int64_t row = rows.first; row < rows.last; ++row) {
      for (int64_t column = columns.first; column < columns.last; ++column) {
        const Place from = {to.batch, to.channel, row, column};
        sum += ToFloat(dy[IndexOf(from, shape.channels, shape.output, channels_last)]) /
               Divisor(shape, row, column);
      }
    }
    dx[i] = FromFloat<T>(sum);
  }
}

int64_t Elements(const PoolShape& shape, const std::array<int64_t, 2>& image) {
  return shape.batch * shape.channels * image[0] * image[1];
}

}  // namespace

cudaError_t MaxPool2d(void* y, int32_t* state, const void* x, const PoolShape& shape,
                      cudaStream_t stream) {
  const int64_t n = Elements(shape, shape.output);
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    return Launch(MaxAll<T>, Strided(n), kThreads, 0, stream, static_cast<T*>(y), state,
                  static_cast<const T*>(x), shape, n);
  });
}

cudaError_t MaxPool2dGrad(void* dx, const void* dy, const int32_t* state, const PoolShape& shape,
                          cudaStream_t stream) {
  const int64_t n = Elements(shape, shape.image);
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    return Launch(MaxGradAll<T>, Strided(n), kThreads, 0, stream, static_cast<T*>(dx),
                  static_cast<const T*>(dy), state, shape, n);
  });
}

cudaError_t AveragePool2d(void* y, const void* x, const PoolShape& shape, cudaStream_t stream) {
  const int64_t n = Elements(shape, shape.output);
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    return Launch(AverageAll<T>, Strided(n), kThreads, 0, stream, static_cast<T*>(y),
                  static_cast<const T*>(x), shape, n);
  });
}

cudaError_t AveragePool2dGrad(void* dx, const void* dy, const PoolShape& shape,
                              cudaStream_t stream) {
  const int64_t n = Elements(shape, shape.image);
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    return Launch(AverageGradAll<T>, Strided(n), kThreads, 0, stream, static_cast<T*>(dx),
                  static_cast<const T*>(dy), shape, n);
  });
}

}  // namespace muster::kernels::cuda
