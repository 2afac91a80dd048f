#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/layer_norm.h"

namespace muster::kernels::cuda {
namespace {

constexpr int kRowsOfBlock = kThreads / kWarp;

dim3 RowBlocks(int64_t rows) {
  return dim3(static_cast<unsigned>(std::min(CeilDiv(rows, kRowsOfBlock), kBlocksMax)));
}

// f(values of V channels, the first of them) for the channels of a row that this lane takes.
template <typename T, int V, typename F>
__device__ void ForChannels(const T* row, int64_t channels, F f) {
  for (int64_t c = int64_t{threadIdx.x % kWarp} * V; c < channels; c += kWarp * V) {
    float values[V];
    LoadFloats(values, row + c);
    f(values, c);
  }
}

// V divides C.
template <typename T, int V>
__global__ void NormaliseRows(LayerNormArguments a, int64_t rows, int64_t channels) {
  const auto* gain = static_cast<const T*>(a.gain);
  const auto* bias = static_cast<const T*>(a.bias);
  const int64_t first = int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kWarp;
  for (int64_t row = first; row < rows; row += int64_t{gridDim.x} * kRowsOfBlock) {
    const T* x = static_cast<const T*>(a.x) + row * channels;
    if (a.addend != nullptr) {
      // What later reads see is the sum as it is stored, by the same lane.
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

// dx = rstd (dy gain - mean(dy gain) - xhat mean(dy gain xhat)) (+ dsum); RmsNorm has no first
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

  struct Columns {
    ParameterGradients all;

    template <int V>
    __device__ void Add(int64_t row, int64_t i, float (&sums)[2][V]) const {
      float g[V], values[V];
      LoadFloats(g, all.dy + i);
      LoadFloats(values, all.x + i);
      const float centre = all.mean == nullptr ? 0 : all.mean[row], scale = all.rstd[row];
#pragma unroll
      for (int k = 0; k < V; ++k) {
        sums[0][k] += g[k] * (values[k] - centre) * scale;
        sums[1][k] += g[k];
      }
    }
  };
  template <int V>
  __device__ Columns At(int64_t, int) const {
    return {*this};
  }
};

// Of AddLayerNormGrad: two blocks for each multiprocessor of the largest devices. It says in which
// order rows are added up, and is the same on all.
constexpr int64_t kGradientParts = 264;
constexpr int kVectorsMax = 6;  // of a row in a lane

int64_t GradientParts(int64_t rows) {
  return std::min(CeilDiv(rows, kRowsOfBlock), kGradientParts);
}

// Vectors of a row that each lane of a warp has; 0 where the row does not fit.
template <typename T>
int64_t VectorsOfLane(int64_t channels) {
  const int64_t vectors = CeilDiv(channels, kWarp * kVector<T>);
  return channels % kVector<T> == 0 && vectors <= kVectorsMax ? vectors : 0;
}

// As GradRows, with dsum added, and the parts of the parameters' gradients that are of a block's
// rows: f32[blocks, 2, C]. K vectors of a row in each lane.
template <typename T, int K>
__global__ void __launch_bounds__(kThreads)
    GradRowsAndParameters(AddLayerNormGradArguments a, float* partial, int64_t rows,
                          int64_t channels) {
  constexpr int V = kVector<T>;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const auto* gain = static_cast<const T*>(a.gain);
  float of_gain[K][V] = {}, of_bias[K][V] = {};
  for (int64_t row = int64_t{blockIdx.x} * kRowsOfBlock + warp; row < rows;
       row += int64_t{gridDim.x} * kRowsOfBlock) {
    const T* dy = static_cast<const T*>(a.dy) + row * channels;
    const T* dsum = static_cast<const T*>(a.dsum) + row * channels;
    const T* x = static_cast<const T*>(a.x) + row * channels;
    T* dx = static_cast<T*>(a.dx) + row * channels;
    const float mean = a.mean[row], rstd = a.rstd[row];
    float scaled[K][V], normal[K][V];
    float sum = 0, sum_with_x = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int64_t c = (int64_t{k} * kWarp + lane) * V;
      if (c >= channels) continue;
      float gains[V];
      LoadFloats(scaled[k], dy + c);
      LoadFloats(normal[k], x + c);
      LoadFloats(gains, gain + c);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        normal[k][i] = (normal[k][i] - mean) * rstd;
        of_gain[k][i] += scaled[k][i] * normal[k][i];
        of_bias[k][i] += scaled[k][i];
        scaled[k][i] *= gains[i];
        sum += scaled[k][i];
        sum_with_x += scaled[k][i] * normal[k][i];
      }
    }
    sum = WarpSum(sum) / static_cast<float>(channels);
    sum_with_x = WarpSum(sum_with_x) / static_cast<float>(channels);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int64_t c = (int64_t{k} * kWarp + lane) * V;
      if (c >= channels) continue;
      float added[V];
      LoadFloats(added, dsum + c);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        added[i] += rstd * (scaled[k][i] - sum - normal[k][i] * sum_with_x);
      }
      StoreFloats(dx + c, added);
    }
  }
  __shared__ float of_warps[kRowsOfBlock][2][kWarp * V];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < V; ++i) {
      of_warps[warp][0][lane * V + i] = of_gain[k][i];
      of_warps[warp][1][lane * V + i] = of_bias[k][i];
    }
    __syncthreads();
    for (int at = static_cast<int>(threadIdx.x); at < 2 * kWarp * V; at += kThreads) {
      const int which = at / (kWarp * V), own = at % (kWarp * V);
      const int64_t c = int64_t{k} * kWarp * V + own;
      if (c >= channels) continue;
      float sum = 0;
      for (int w = 0; w < kRowsOfBlock; ++w) sum += of_warps[w][which][own];
      partial[(int64_t{blockIdx.x} * 2 + which) * channels + c] = sum;
    }
  }
}

template <typename T>
__global__ void StoreParameterGradients(T* dgain, T* dbias, const float* partial, int64_t channels,
                                        int64_t parts) {
  for (int64_t c = ThreadIndex(); c < channels; c += ThreadCount()) {
    dgain[c] = FromFloat<T>(JoinParts<2>(partial, 0, c, channels, parts));
    if (dbias != nullptr) {
      dbias[c] = FromFloat<T>(JoinParts<2>(partial, 1, c, channels, parts));
    }
  }
}

}  // namespace

cudaError_t LayerNorm(const LayerNormArguments& arguments, NormRows shape, cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    const auto kernel =
        shape.channels % kVector<T> == 0 ? NormaliseRows<T, kVector<T>> : NormaliseRows<T, 1>;
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

namespace {

// False: a row does not fit.
template <typename T, int K = kVectorsMax>
bool LaunchGradRowsAndParameters(int64_t vectors, const AddLayerNormGradArguments& arguments,
                                 float* partial, NormRows shape, cudaStream_t stream,
                                 cudaError_t& error) {
  if constexpr (K == 0) {
    return false;
  } else {
    if (vectors != K) {
      return LaunchGradRowsAndParameters<T, K - 1>(vectors, arguments, partial, shape, stream,
                                                   error);
    }
    error =
        Launch(GradRowsAndParameters<T, K>, dim3(static_cast<unsigned>(GradientParts(shape.rows))),
               kThreads, 0, stream, arguments, partial, shape.rows, shape.channels);
    return true;
  }
}

}  // namespace

int64_t AddLayerNormGradWorkspaceBytes(NormRows shape) {
  return std::max(2 * GradientParts(shape.rows) * shape.channels * int64_t{sizeof(float)},
                  LayerNormGradParametersWorkspaceBytes(shape));
}

cudaError_t AddLayerNormGrad(const AddLayerNormGradArguments& a, NormRows shape, void* workspace,
                             cudaStream_t stream) {
  auto* partial = static_cast<float*>(workspace);
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    cudaError_t error = cudaSuccess;
    if (LaunchGradRowsAndParameters<T>(VectorsOfLane<T>(shape.channels), a, partial, shape, stream,
                                       error)) {
      if (error != cudaSuccess) return error;
      return Launch(StoreParameterGradients<T>, Strided(shape.channels), kThreads, 0, stream,
                    static_cast<T*>(a.dgain), static_cast<T*>(a.dbias), partial, shape.channels,
                    GradientParts(shape.rows));
    }
    MUSTER_RETURN_IF_CUDA_ERROR(LayerNormGradParameters(a.dgain, a.dbias, a.dy, a.x, a.mean, a.rstd,
                                                        shape, workspace, stream));
    return LaunchGradRows(a.dx, a.dy, a.dsum, a.x, a.gain, a.mean, a.rstd, shape, stream);
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
    return Launch(StoreParameterGradients<T>, Strided(shape.channels), kThreads, 0, stream,
                  static_cast<T*>(dgain), static_cast<T*>(dbias), partial, shape.channels,
                  parts.parts);
  });
}

}  // namespace muster::kernels::cuda
