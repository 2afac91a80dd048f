#include "kernels/cuda/activation.h"
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/layer_norm.h"

namespace muster::kernels::cuda {
namespace {

constexpr int kRowsOfBlock = kThreads / kWarp;

dim3 RowBlocks(int64_t rows) {
  return dim3(static_cast<unsigned>(std::min(CeilDiv(rows, kRowsOfBlock), kBlocksMax)));
}

// Calls f(values of V channels, the first of them) for the channels of a row that this lane takes.
template <typename T, int V, typename F>
__device__ void ForChannels(const T* row, int64_t channels, F f) {
  for (int64_t c = int64_t{threadIdx.x % kWarp} * V; c < channels; c += kWarp * V) {
    float values[V];
    LoadFloats(values, row + c);
    f(values, c);
  }
}

constexpr int kVectorsMax = 6;  // vectors of a row per lane

// Number of vectors of a row per lane of a warp; 0 if the row does not fit.
template <typename T>
int64_t VectorsOfLane(int64_t channels) {
  const int64_t vectors = CeilDiv(channels, kWarp * kVector<T>);
  return channels % kVector<T> == 0 && vectors <= kVectorsMax ? vectors : 0;
}

// Calls f(the k-th vector of this lane, its first channel) for this lane's K vectors of a row.
template <typename T, int K, typename F>
__device__ void ForVectorsOfLane(int64_t channels, F f) {
  const int first = static_cast<int>(threadIdx.x % kWarp) * kVector<T>;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int c = first + k * kWarp * kVector<T>;
    if (c < static_cast<int>(channels)) f(k, c);
  }
}

// Normalises rows that fit in a warp's registers, K vectors per lane. With an addend, it normalises
// the rounded sum, which it also stores.
template <typename T, int K>
__global__ void __launch_bounds__(kThreads)
    NormaliseRowsInRegisters(LayerNormArguments a, int64_t rows, int64_t channels) {
  constexpr int V = kVector<T>;
  const auto* gain = static_cast<const T*>(a.gain);
  const auto* bias = static_cast<const T*>(a.bias);
  const int64_t first = int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kWarp;
  for (int64_t row = first; row < rows; row += int64_t{gridDim.x} * kRowsOfBlock) {
    float x[K][V];
    float mean = 0, squares = 0;
    ForVectorsOfLane<T, K>(channels, [&](int k, int c) {
      LoadFloats(x[k], static_cast<const T*>(a.x) + row * channels + c);
      if (a.addend == nullptr) return;
      float others[V];
      LoadFloats(others, static_cast<const T*>(a.addend) + row * channels + c);
#pragma unroll
      for (int i = 0; i < V; ++i) x[k][i] = ToFloat(FromFloat<T>(x[k][i] + others[i]));
      StoreFloats(static_cast<T*>(a.sum) + row * channels + c, x[k]);
    });
    if (a.mean != nullptr) {
      ForVectorsOfLane<T, K>(channels, [&](int k, int) {
#pragma unroll
        for (float value : x[k]) mean += value;
      });
      mean = WarpSum(mean) / static_cast<float>(channels);
    }
    ForVectorsOfLane<T, K>(channels, [&](int k, int) {
#pragma unroll
      for (float value : x[k]) squares += (value - mean) * (value - mean);
    });
    const float rstd = 1 / sqrtf(WarpSum(squares) / static_cast<float>(channels) + a.epsilon);
    if (threadIdx.x % kWarp == 0) {
      if (a.mean != nullptr) a.mean[row] = mean;
      a.rstd[row] = rstd;
    }
    ForVectorsOfLane<T, K>(channels, [&](int k, int c) {
      float gains[V], biases[V] = {};
      LoadFloats(gains, gain + c);
      if (bias != nullptr) LoadFloats(biases, bias + c);
#pragma unroll
      for (int i = 0; i < V; ++i) x[k][i] = (x[k][i] - mean) * rstd * gains[i] + biases[i];
      StoreFloats(static_cast<T*>(a.y) + row * channels + c, x[k]);
    });
  }
}

// Normalises rows that do not fit in the registers or are not whole vectors. V divides C.
template <typename T, int V>
__global__ void NormaliseRows(LayerNormArguments a, int64_t rows, int64_t channels) {
  const auto* gain = static_cast<const T*>(a.gain);
  const auto* bias = static_cast<const T*>(a.bias);
  const int64_t first = int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kWarp;
  for (int64_t row = first; row < rows; row += int64_t{gridDim.x} * kRowsOfBlock) {
    const T* x = static_cast<const T*>(a.x) + row * channels;
    if (a.addend != nullptr) {
      // Later reads of the row get the rounded sum; the same lane has stored it.
      const T* addend = static_cast<const T*>(a.addend) + row * channels;
      T* sum = static_cast<T*>(a.sum) + row * channels;
      ForChannels<T, V>(x, channels, [&](float(&values)[V], int64_t c) {
        float others[V];
        LoadFloats(others, addend + c);
#pragma unroll
        for (int i = 0; i < V; ++i) values[i] += others[i];
        StoreFloats(sum + c, values);
      });
      x = sum;
    }
    float mean = 0;
    if (a.mean != nullptr) {
      ForChannels<T, V>(x, channels, [&](float(&values)[V], int64_t) {
#pragma unroll
        for (float value : values) mean += value;
      });
      mean = WarpSum(mean) / static_cast<float>(channels);
    }
    float squares = 0;
    ForChannels<T, V>(x, channels, [&](float(&values)[V], int64_t) {
#pragma unroll
      for (float value : values) squares += (value - mean) * (value - mean);
    });
    const float rstd = 1 / sqrtf(WarpSum(squares) / static_cast<float>(channels) + a.epsilon);
    if (threadIdx.x % kWarp == 0) {
      if (a.mean != nullptr) a.mean[row] = mean;
      a.rstd[row] = rstd;
    }
    T* y = static_cast<T*>(a.y) + row * channels;
    ForChannels<T, V>(x, channels, [&](float(&values)[V], int64_t c) {
      float gains[V], biases[V] = {};
      LoadFloats(gains, gain + c);
      if (bias != nullptr) LoadFloats(biases, bias + c);
#pragma unroll
      for (int i = 0; i < V; ++i) values[i] = (values[i] - mean) * rstd * gains[i] + biases[i];
      StoreFloats(y + c, values);
    });
  }
}

// dx = rstd (dy gain - mean(dy gain) - xhat mean(dy gain xhat)) (+ dsum). RmsNorm omits the first
// mean.
template <typename T, int V>
__global__ void GradRows(T* dx, const T* dy, const T* dsum, const T* x, const T* gain,
                         const float* means, const float* rstds, int64_t rows, int64_t channels) {
  const int64_t first = int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kWarp;
  for (int64_t row = first; row < rows; row += int64_t{gridDim.x} * kRowsOfBlock) {
    const float mean = means == nullptr ? 0 : means[row], rstd = rstds[row];
    const T* row_of_x = x + row * channels;
    const T* row_of_dy = dy + row * channels;
    float sum = 0, sum_with_x = 0;
    ForChannels<T, V>(row_of_dy, channels, [&](float(&values)[V], int64_t c) {
      float gains[V], xs[V];
      LoadFloats(gains, gain + c);
      LoadFloats(xs, row_of_x + c);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float scaled = values[i] * gains[i];
        sum += scaled;
        sum_with_x += scaled * (xs[i] - mean) * rstd;
      }
    });
    sum = means == nullptr ? 0 : WarpSum(sum) / static_cast<float>(channels);
    sum_with_x = WarpSum(sum_with_x) / static_cast<float>(channels);
    T* row_of_dx = dx + row * channels;
    ForChannels<T, V>(row_of_dy, channels, [&](float(&values)[V], int64_t c) {
      float gains[V], xs[V];
      LoadFloats(gains, gain + c);
      LoadFloats(xs, row_of_x + c);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float normal = (xs[i] - mean) * rstd;
        values[i] = rstd * (values[i] * gains[i] - sum - normal * sum_with_x);
      }
      if (dsum != nullptr) {
        float added[V];
        LoadFloats(added, dsum + row * channels + c);
#pragma unroll
        for (int i = 0; i < V; ++i) values[i] += added[i];
      }
      StoreFloats(row_of_dx + c, values);
    });
  }
}

template <typename T>
struct ParameterGradients {
  const T* dy;
  const T* x;
  const float* mean;
  const float* rstd;

  template <int V>
  struct Loaded {
    Vector<T, V> dy, x;
    float centre, scale;
  };

  template <int V>
  struct Columns {
    ParameterGradients all;

    __device__ Loaded<V> Load(int64_t row, int64_t i) const {
      return {cuda::Load<V>(all.dy + i), cuda::Load<V>(all.x + i),
              all.mean == nullptr ? 0 : all.mean[row], all.rstd[row]};
    }
    __device__ void Add(const Loaded<V>& loaded, int64_t, int64_t, float (&sums)[2][V]) const {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const float g = ToFloat(loaded.dy.lanes[k]);
        sums[0][k] += g * (ToFloat(loaded.x.lanes[k]) - loaded.centre) * loaded.scale;
        sums[1][k] += g;
      }
    }
  };
  template <int V>
  __device__ Columns<V> At(int64_t, int) const {
    return {*this};
  }
};

// The grid of LayerNormGrad has one block per part of the rows. The number of parts determines the
// order in which rows are added, so it is the same on all devices. It is the number of blocks that
// the registers of the largest device hold at once, which depends on the vectors per lane.
constexpr int kGradientThreads = 128;
constexpr int kGradientRows = kGradientThreads / kWarp;  // rows of a block at once

constexpr int GradientBlocks(int64_t vectors) { return vectors <= 2 ? 4 : vectors <= 4 ? 3 : 2; }

int64_t GradientParts(int64_t rows, int64_t vectors) {
  return std::min<int64_t>(CeilDiv(rows, kGradientRows), 132 * GradientBlocks(vectors));
}

// Makes the compiler recompute values made from a vector instead of keeping them: recomputing is
// cheaper than the registers.
template <typename T, int V>
__device__ void Forget([[maybe_unused]] Vector<T, V>& vector) {
#ifdef __CUDA_ARCH__
  auto* words = reinterpret_cast<uint32_t*>(&vector);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(vector) / sizeof(uint32_t)); ++i) {
    asm volatile("" : "+r"(words[i]));
  }
#endif
}

// The inputs of GradRowsAndParameters for a row, as in memory: K vectors of each.
template <typename T, int K>
struct GradientRow {
  Vector<T, kVector<T>> dy[K], x[K], third[K];
  float mean, rstd;
};

template <typename T, int K>
__device__ void LoadRow(GradientRow<T, K>& to, const LayerNormGradArguments& a, int64_t row,
                        int64_t channels) {
  constexpr int V = kVector<T>;
  const auto* third = static_cast<const T*>(a.dsum != nullptr ? a.dsum : a.dy_second);
  ForVectorsOfLane<T, K>(channels, [&](int k, int c) {
    to.dy[k] = Load<V>(static_cast<const T*>(a.dy) + row * channels + c);
    to.x[k] = Load<V>(static_cast<const T*>(a.x) + row * channels + c);
    to.third[k] = Load<V>(third + row * channels + c);
  });
  to.mean = a.mean[row];
  to.rstd = a.rstd[row];
}

// Computes what GradRows does, and the sums of a block's rows for the parameters' gradients:
// f32[blocks, 2, C]. Each lane has K vectors of a row, whose loads are in flight at once.
template <typename T, int K>
__global__ void __launch_bounds__(kGradientThreads, GradientBlocks(K))
    GradRowsAndParameters(LayerNormGradArguments a, float* partial, int64_t rows,
                          int64_t channels) {
  constexpr int V = kVector<T>;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const auto* gain = static_cast<const T*>(a.gain);
  const int64_t first = int64_t{blockIdx.x} * kGradientRows + warp;
  const int64_t stride = int64_t{gridDim.x} * kGradientRows;
  const bool has_dsum = a.dsum != nullptr;
  float of_gain[K][V] = {}, of_bias[K][V] = {};
  for (int64_t row = first; row < rows; row += stride) {
    GradientRow<T, K> now;
    LoadRow<T, K>(now, a, row, channels);
    // dy and the normalised values of vector k.
    const auto unpack = [&now, has_dsum](int k, float(&dy)[V], float(&normal)[V]) {
      ToFloats(dy, now.dy[k]);
      ToFloats(normal, now.x[k]);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        dy[i] += has_dsum ? 0 : ToFloat(now.third[k].lanes[i]);
        normal[i] = (normal[i] - now.mean) * now.rstd;
      }
    };
    float sum = 0, sum_with_x = 0;
    ForVectorsOfLane<T, K>(channels, [&](int k, int c) {
      float dy[V], normal[V], gains[V];
      unpack(k, dy, normal);
      LoadFloats(gains, gain + c);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        of_gain[k][i] += dy[i] * normal[i];
        of_bias[k][i] += dy[i];
        sum += dy[i] * gains[i];
        sum_with_x += dy[i] * gains[i] * normal[i];
      }
    });
    sum = WarpSum(sum) / static_cast<float>(channels);
    sum_with_x = WarpSum(sum_with_x) / static_cast<float>(channels);
    ForVectorsOfLane<T, K>(channels, [&](int k, int c) {
      Forget(now.dy[k]);
      Forget(now.x[k]);
      float dy[V], normal[V], gains[V];
      unpack(k, dy, normal);
      LoadFloats(gains, gain + c);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        dy[i] = now.rstd * (dy[i] * gains[i] - sum - normal[i] * sum_with_x);
        dy[i] += has_dsum ? ToFloat(now.third[k].lanes[i]) : 0;
      }
      StoreFloats(static_cast<T*>(a.dx) + row * channels + c, dy);
    });
  }
  __shared__ float of_warps[kGradientRows][2][kWarp * V];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < V; ++i) {
      of_warps[warp][0][lane * V + i] = of_gain[k][i];
      of_warps[warp][1][lane * V + i] = of_bias[k][i];
    }
    __syncthreads();
    for (int at = static_cast<int>(threadIdx.x); at < 2 * kWarp * V; at += kGradientThreads) {
      const int which = at / (kWarp * V), own = at % (kWarp * V);
      const int64_t c = int64_t{k} * kWarp * V + own;
      if (c >= channels) continue;
      float sum = 0;
      for (int w = 0; w < kGradientRows; ++w) sum += of_warps[w][which][own];
      partial[(int64_t{blockIdx.x} * 2 + which) * channels + c] = sum;
    }
  }
}

template <typename T>
__global__ void StoreParameterGradients(T* dgain, T* dbias, const float* partial, int64_t channels,
                                        int64_t parts) {
  ForJoined<2>(partial, channels, parts, [&](int64_t c, const float(&sums)[2]) {
    dgain[c] = FromFloat<T>(sums[0]);
    if (dbias != nullptr) dbias[c] = FromFloat<T>(sums[1]);
  });
}

}  // namespace

cudaError_t LayerNorm(const LayerNormArguments& arguments, NormRows shape, cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    const int64_t vectors = VectorsOfLane<T>(shape.channels);
    const auto kernel = vectors == 0 && shape.channels % kVector<T> != 0 ? NormaliseRows<T, 1>
                        : vectors == 0 ? NormaliseRows<T, kVector<T>>
                        : vectors <= 2 ? NormaliseRowsInRegisters<T, 2>
                        : vectors <= 3 ? NormaliseRowsInRegisters<T, 3>
                        : vectors <= 4 ? NormaliseRowsInRegisters<T, 4>
                                       : NormaliseRowsInRegisters<T, kVectorsMax>;
    return Launch(kernel, RowBlocks(shape.rows), kThreads, 0, stream, arguments, shape.rows,
                  shape.channels);
  });
}

namespace {

cudaError_t LaunchGradRows(void* dx, const void* dy, const void* dsum, const void* x,
                           const void* gain, const float* mean, const float* rstd, NormRows shape,
                           cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    const auto kernel = shape.channels % kVector<T> == 0 ? GradRows<T, kVector<T>> : GradRows<T, 1>;
    return Launch(kernel, RowBlocks(shape.rows), kThreads, 0, stream, static_cast<T*>(dx),
                  static_cast<const T*>(dy), static_cast<const T*>(dsum), static_cast<const T*>(x),
                  static_cast<const T*>(gain), mean, rstd, shape.rows, shape.channels);
  });
}

}  // namespace

cudaError_t LayerNormGradInput(void* dx, const void* dy, const void* x, const void* gain,
                               const float* mean, const float* rstd, NormRows shape,
                               cudaStream_t stream) {
  return LaunchGradRows(dx, dy, /*dsum=*/nullptr, x, gain, mean, rstd, shape, stream);
}

int64_t LayerNormGradWorkspaceBytes(NormRows shape) {
  return std::max(2 * GradientParts(shape.rows, 1) * shape.channels * int64_t{sizeof(float)},
                  LayerNormGradParametersWorkspaceBytes(shape));
}

cudaError_t LayerNormGrad(const LayerNormGradArguments& a, NormRows shape, void* workspace,
                          cudaStream_t stream) {
  if ((a.dsum == nullptr) == (a.dy_second == nullptr)) return cudaErrorInvalidValue;
  auto* partial = static_cast<float*>(workspace);
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    if (const int64_t vectors = VectorsOfLane<T>(shape.channels); vectors > 0) {
      const auto kernel = vectors <= 2   ? GradRowsAndParameters<T, 2>
                          : vectors <= 3 ? GradRowsAndParameters<T, 3>
                          : vectors <= 4 ? GradRowsAndParameters<T, 4>
                                         : GradRowsAndParameters<T, kVectorsMax>;
      MUSTER_RETURN_IF_CUDA_ERROR(
          Launch(kernel, dim3(static_cast<unsigned>(GradientParts(shape.rows, vectors))),
                 kGradientThreads, 0, stream, a, partial, shape.rows, shape.channels));
      return Launch(StoreParameterGradients<T>, JoiningBlocks(shape.channels), kThreads, 0, stream,
                    static_cast<T*>(a.dgain), static_cast<T*>(a.dbias), partial, shape.channels,
                    GradientParts(shape.rows, vectors));
    }
    const void* dy = a.dy;
    if (a.dy_second != nullptr) {
      const void* const terms[] = {a.dy, a.dy_second};
      MUSTER_RETURN_IF_CUDA_ERROR(
          Accumulate(a.dx, terms, 2, shape.rows * shape.channels, shape.type, stream));
      dy = a.dx;
    }
    MUSTER_RETURN_IF_CUDA_ERROR(LayerNormGradParameters(a.dgain, a.dbias, dy, a.x, a.mean, a.rstd,
                                                        shape, workspace, stream));
    return LaunchGradRows(a.dx, dy, a.dsum, a.x, a.gain, a.mean, a.rstd, shape, stream);
  });
}

int64_t LayerNormGradParametersWorkspaceBytes(NormRows shape) {
  return ColumnParts(shape.rows, shape.channels).WorkspaceBytes(2);
}

cudaError_t LayerNormGradParameters(void* dgain, void* dbias, const void* dy, const void* x,
                                    const float* mean, const float* rstd, NormRows shape,
                                    void* workspace, cudaStream_t stream) {
  const ColumnParts parts(shape.rows, shape.channels);
  auto* partial = static_cast<float*>(workspace);
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    const ParameterGradients<T> gradients = {static_cast<const T*>(dy), static_cast<const T*>(x),
                                             mean, rstd};
    MUSTER_RETURN_IF_CUDA_ERROR((LaunchSumColumns<2, T>(partial, parts, gradients, stream)));
    return Launch(StoreParameterGradients<T>, JoiningBlocks(shape.channels), kThreads, 0, stream,
                  static_cast<T*>(dgain), static_cast<T*>(dbias), partial, shape.channels,
                  parts.parts);
  });
}

}  // namespace muster::kernels::cuda
