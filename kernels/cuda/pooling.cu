#include <type_traits>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pooling.h"

namespace muster::kernels::cuda {
namespace {

// Divides numbers below kSmallMax by multiplication, in 32 bits.
//   Source: Granlund, Montgomery, "Division by invariant integers using multiplication", PLDI 1994.
struct Small {
  using Index = int32_t;

  Index divisor;
  uint32_t multiplier;
  int shift = 0;

  explicit Small(int64_t by) : divisor(static_cast<Index>(by)) {
    while (int64_t{1} << shift < by) ++shift;
    const uint64_t rest = (uint64_t{1} << shift) - static_cast<uint64_t>(by);
    multiplier = static_cast<uint32_t>((rest << 32) / static_cast<uint64_t>(by) + 1);
  }
  __device__ Index Divide(Index n) const {
    const auto dividend = static_cast<uint32_t>(n);
    return static_cast<Index>((__umulhi(dividend, multiplier) + dividend) >> shift);
  }
};
constexpr int64_t kSmallMax = int64_t{1} << 30;

// Plain division, for larger tensors. Slow.
struct Large {
  using Index = int64_t;

  Index divisor;

  explicit Large(int64_t by) : divisor(by) {}
  __device__ Index Divide(Index n) const { return n / divisor; }
};

template <typename Index>
struct Range {
  Index first, last;  // last excluded
};

// V neighbouring elements of a [B, C, rows, columns] tensor.
template <typename Index>
struct Place {
  Index batch, channel, row, column;
};

// Locates elements in the image and the output, and the windows that cover a pixel.
template <typename D, int V>
struct Geometry {
  using Index = typename D::Index;
  using Spot = Place<Index>;

  struct Plane {
    D rows, columns;
  };
  struct Axis {
    // `extent` is that of a window with its gaps; `before` and `after` are the padding.
    Index image, output, extent, before, after;
    Index dilation;
    D stride;
  };

  bool channels_last;
  bool count_padding;
  Index channels;
  D vectors;  // vectors of V channels if channels are last, else the channels
  Plane image, output;
  Axis axes[2];

  explicit Geometry(const PoolShape& s)
      : channels_last(s.order == ChannelOrder::kLast),
        count_padding(s.count_padding),
        channels(static_cast<Index>(s.channels)),
        vectors(s.channels / V),
        image{D(s.image[0]), D(s.image[1])},
        output{D(s.output[0]), D(s.output[1])},
        axes{AxisOf(s, 0), AxisOf(s, 1)} {}

  static Axis AxisOf(const PoolShape& s, int d) {
    return {static_cast<Index>(s.image[d]),
            static_cast<Index>(s.output[d]),
            static_cast<Index>((s.kernel[d] - 1) * s.dilations[d] + 1),
            static_cast<Index>(s.padding[d]),
            static_cast<Index>(s.padding[d + 2]),
            static_cast<Index>(s.dilations[d]),
            D(s.strides[d])};
  }

  // The place of vector v of the tensor, in memory order.
  __device__ Spot Locate(Index v, const Plane& plane) const {
    Spot place;
    if (channels_last) place.channel = Split(v, vectors) * V;
    place.column = Split(v, plane.columns);
    place.row = Split(v, plane.rows);
    if (!channels_last) place.channel = Split(v, vectors);
    place.batch = v;
    return place;
  }
  __device__ Index IndexOf(const Spot& place, const Plane& plane) const {
    const Index rows = plane.rows.divisor, columns = plane.columns.divisor;
    return channels_last ? ((place.batch * rows + place.row) * columns + place.column) * channels +
                               place.channel
                         : ((place.batch * channels + place.channel) * rows + place.row) * columns +
                               place.column;
  }

  // The rows (d = 0) or columns of the image under window `at`, a dilation apart.
  __device__ Range<Index> Window(int d, Index at) const {
    const Axis& axis = axes[d];
    Index start = at * axis.stride.divisor - axis.before;
    const Index end = start + axis.extent;
    while (start < 0) start += axis.dilation;
    return {start, min(end, axis.image)};
  }
  // The windows over row or column `position`, including those that have it in a gap.
  __device__ Range<Index> WindowsOver(int d, Index position) const {
    const Axis& axis = axes[d];
    const Index padded = position + axis.before;
    const Index earlier = padded - axis.extent;  // windows up to here end before the position
    return {earlier < 0 ? 0 : axis.stride.Divide(earlier) + 1,
            min(axis.stride.Divide(padded) + 1, axis.output)};
  }
  __device__ float Divisor(Index row, Index column) const {
    Index size = 1;
    const Index at[2] = {row, column};
    for (int d = 0; d < 2; ++d) {
      const Axis& axis = axes[d];
      if (count_padding) {
        // Elements beyond the padding (with ceil) do not count.
        const Index start = at[d] * axis.stride.divisor - axis.before;
        size *= min(start + axis.extent, axis.image + axis.after) - start;
      } else {
        const Range<Index> window = Window(d, at[d]);
        size *= window.last - window.first;
      }
    }
    return static_cast<float>(size);
  }

 private:
  // Divides n by `by`, and returns the remainder.
  __device__ static Index Split(Index& n, const D& by) {
    const Index quotient = by.Divide(n), remainder = n - quotient * by.divisor;
    n = quotient;
    return remainder;
  }
};

// Loads and stores V positions of maxima, up to 16 bytes at a time.
template <int V>
struct Positions {
  static constexpr int kWidth = V < 4 ? V : 4;

  __device__ static void Load(int32_t (&to)[V], const int32_t* from) {
#pragma unroll
    for (int i = 0; i < V; i += kWidth) {
      const auto loaded = *reinterpret_cast<const Vector<int32_t, kWidth>*>(from + i);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) to[i + k] = loaded.lanes[k];
    }
  }
  __device__ static void Store(int32_t* to, const int32_t (&from)[V]) {
#pragma unroll
    for (int i = 0; i < V; i += kWidth) {
      Vector<int32_t, kWidth> stored;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) stored.lanes[k] = from[i + k];
      *reinterpret_cast<Vector<int32_t, kWidth>*>(to + i) = stored;
    }
  }
};

// A thread of the kernels below takes V elements; n counts vectors.
template <typename T, typename D, int V>
__global__ void MaxAll(T* y, int32_t* state, const T* x, Geometry<D, V> g, int64_t n) {
  using Index = typename D::Index;
  for (int64_t v = ThreadIndex(); v < n; v += ThreadCount()) {
    const auto to = g.Locate(static_cast<Index>(v), g.output);
    const auto rows = g.Window(0, to.row), columns = g.Window(1, to.column);
    float best[V];
    int32_t best_at[V];
#pragma unroll
    for (int k = 0; k < V; ++k) {
      best[k] = -INFINITY;
      best_at[k] = -1;
    }
    for (Index row = rows.first; row < rows.last; row += g.axes[0].dilation) {
      for (Index column = columns.first; column < columns.last; column += g.axes[1].dilation) {
        float values[V];
        LoadFloats(values, x + g.IndexOf({to.batch, to.channel, row, column}, g.image));
        const auto at = static_cast<int32_t>(row * g.image.columns.divisor + column);
#pragma unroll
        for (int k = 0; k < V; ++k) {
          const bool is_new_nan = isnan(values[k]) && !isnan(best[k]);
          if (best_at[k] < 0 || values[k] > best[k] || is_new_nan) {
            best[k] = values[k];
            best_at[k] = at;
          }
        }
      }
    }
    StoreFloats(y + v * V, best);
    Positions<V>::Store(state + v * V, best_at);
  }
}

template <typename T, typename D, int V>
__global__ void MaxGradAll(T* dx, const T* dy, const int32_t* state, Geometry<D, V> g, int64_t n) {
  using Index = typename D::Index;
  for (int64_t v = ThreadIndex(); v < n; v += ThreadCount()) {
    const auto to = g.Locate(static_cast<Index>(v), g.image);
    const auto rows = g.WindowsOver(0, to.row), columns = g.WindowsOver(1, to.column);
    const auto own = static_cast<int32_t>(to.row * g.image.columns.divisor + to.column);
    float sum[V] = {};
    for (Index row = rows.first; row < rows.last; ++row) {
      for (Index column = columns.first; column < columns.last; ++column) {
        const Index from = g.IndexOf({to.batch, to.channel, row, column}, g.output);
        float values[V];
        int32_t at[V];
        LoadFloats(values, dy + from);
        Positions<V>::Load(at, state + from);
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] += at[k] == own ? values[k] : 0;
      }
    }
    StoreFloats(dx + v * V, sum);
  }
}

template <typename T, typename D, int V>
__global__ void AverageAll(T* y, const T* x, Geometry<D, V> g, int64_t n) {
  using Index = typename D::Index;
  for (int64_t v = ThreadIndex(); v < n; v += ThreadCount()) {
    const auto to = g.Locate(static_cast<Index>(v), g.output);
    const auto rows = g.Window(0, to.row), columns = g.Window(1, to.column);
    float sum[V] = {};
    for (Index row = rows.first; row < rows.last; ++row) {
      for (Index column = columns.first; column < columns.last; ++column) {
        float values[V];
        LoadFloats(values, x + g.IndexOf({to.batch, to.channel, row, column}, g.image));
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] += values[k];
      }
    }
    const float divisor = g.Divisor(to.row, to.column);
#pragma unroll
    for (float& value : sum) value /= divisor;
    StoreFloats(y + v * V, sum);
  }
}

template <typename T, typename D, int V>
__global__ void AverageGradAll(T* dx, const T* dy, Geometry<D, V> g, int64_t n) {
  using Index = typename D::Index;
  for (int64_t v = ThreadIndex(); v < n; v += ThreadCount()) {
    const auto to = g.Locate(static_cast<Index>(v), g.image);
    const auto rows = g.WindowsOver(0, to.row), columns = g.WindowsOver(1, to.column);
    float sum[V] = {};
    for (Index row = rows.first; row < rows.last; ++row) {
      for (Index column = columns.first; column < columns.last; ++column) {
        float values[V];
        LoadFloats(values, dy + g.IndexOf({to.batch, to.channel, row, column}, g.output));
        const float divisor = g.Divisor(row, column);
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] += values[k] / divisor;
      }
    }
    StoreFloats(dx + v * V, sum);
  }
}

int64_t Elements(const PoolShape& shape, const std::array<int64_t, 2>& image) {
  return shape.batch * shape.channels * image[0] * image[1];
}

// Calls f(an element of type T, a Geometry, its V). Vectors hold neighbouring channels if channels
// are last.
template <typename F>
cudaError_t ForPooling(const PoolShape& shape, F f) {
  return ForFloating(shape.type, [&](auto one) {
    constexpr int V = kVector<decltype(one)>;
    if (std::max(Elements(shape, shape.image), Elements(shape, shape.output)) >= kSmallMax) {
      return f(one, Geometry<Large, 1>(shape), std::integral_constant<int, 1>());
    }
    if (shape.order == ChannelOrder::kLast && shape.channels % V == 0) {
      return f(one, Geometry<Small, V>(shape), std::integral_constant<int, V>());
    }
    return f(one, Geometry<Small, 1>(shape), std::integral_constant<int, 1>());
  });
}

template <typename D, int V>
D DivisionOf(const Geometry<D, V>&);

}  // namespace

cudaError_t MaxPool2d(void* y, int32_t* state, const void* x, const PoolShape& shape,
                      cudaStream_t stream) {
  return ForPooling(shape, [&](auto one, auto geometry, auto width) {
    using T = decltype(one);
    using D = decltype(DivisionOf(geometry));
    constexpr int V = decltype(width)::value;
    const int64_t n = Elements(shape, shape.output) / V;
    return Launch(MaxAll<T, D, V>, Strided(n), kThreads, 0, stream, static_cast<T*>(y), state,
                  static_cast<const T*>(x), geometry, n);
  });
}

cudaError_t MaxPool2dGrad(void* dx, const void* dy, const int32_t* state, const PoolShape& shape,
                          cudaStream_t stream) {
  return ForPooling(shape, [&](auto one, auto geometry, auto width) {
    using T = decltype(one);
    using D = decltype(DivisionOf(geometry));
    constexpr int V = decltype(width)::value;
    const int64_t n = Elements(shape, shape.image) / V;
    return Launch(MaxGradAll<T, D, V>, Strided(n), kThreads, 0, stream, static_cast<T*>(dx),
                  static_cast<const T*>(dy), state, geometry, n);
  });
}

cudaError_t AveragePool2d(void* y, const void* x, const PoolShape& shape, cudaStream_t stream) {
  return ForPooling(shape, [&](auto one, auto geometry, auto width) {
    using T = decltype(one);
    using D = decltype(DivisionOf(geometry));
    constexpr int V = decltype(width)::value;
    const int64_t n = Elements(shape, shape.output) / V;
    return Launch(AverageAll<T, D, V>, Strided(n), kThreads, 0, stream, static_cast<T*>(y),
                  static_cast<const T*>(x), geometry, n);
  });
}

cudaError_t AveragePool2dGrad(void* dx, const void* dy, const PoolShape& shape,
                              cudaStream_t stream) {
  return ForPooling(shape, [&](auto one, auto geometry, auto width) {
    using T = decltype(one);
    using D = decltype(DivisionOf(geometry));
    constexpr int V = decltype(width)::value;
    const int64_t n = Elements(shape, shape.image) / V;
    return Launch(AverageGradAll<T, D, V>, Strided(n), kThreads, 0, stream, static_cast<T*>(dx),
                  static_cast<const T*>(dy), geometry, n);
  });
}

}  // namespace muster::kernels::cuda
