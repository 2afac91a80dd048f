#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {
namespace {

// Channels last: a matrix of B S rows, summed by columns. Channels first: a block per channel and
// part of the batch's pixels. Both leave partial sums f32[parts, N, C].
bool IsMatrix(const BatchNormShape& shape) {
  return shape.order == ChannelOrder::kLast || shape.pixels == 1;
}

int64_t Rows(const BatchNormShape& shape) { return shape.batch * shape.pixels; }

ColumnParts PartsOf(const BatchNormShape& shape) {
  ColumnParts parts(Rows(shape), shape.channels);
  if (IsMatrix(shape)) return parts;
  parts.parts = std::clamp<int64_t>(CeilDiv(parts.rows, 4096), 1, CeilDiv(1024, shape.channels));
  parts.part_rows = CeilDiv(parts.rows, parts.parts);
  parts.parts = CeilDiv(parts.rows, parts.part_rows);
  return parts;
}

template <int N, typename F>
__global__ void SumChannels(float* partial, ColumnParts shape, int64_t pixels, F f) {
  const int64_t first = blockIdx.y * shape.part_rows;
  const int64_t last = min(first + shape.part_rows, shape.rows);
  for (int64_t c = blockIdx.x; c < shape.columns; c += gridDim.x) {
    float sums[N][1] = {};
    for (int64_t r = first + threadIdx.x; r < last; r += kThreads) {
      const int64_t b = r / pixels;
      f.AddElements((b * shape.columns + c) * pixels + r - b * pixels, c, sums);
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float sum = BlockSum(sums[k][0]);
      if (threadIdx.x == 0) partial[(int64_t{blockIdx.y} * N + k) * shape.columns + c] = sum;
    }
  }
}

template <int N, typename F>
cudaError_t LaunchSums(float* partial, const BatchNormShape& shape, F f, cudaStream_t stream) {
  const ColumnParts parts = PartsOf(shape);
  if (IsMatrix(shape)) return LaunchSumColumns<N>(partial, parts, f, stream);
  const auto blocks = static_cast<unsigned>(std::min(shape.channels, kBlocksMax));
  return Launch(SumChannels<N, F>, dim3(blocks, static_cast<unsigned>(parts.parts)), kThreads, 0,
                stream, partial, parts, shape.pixels, f);
}

// Sums of x and its square, both less the channel's first element: near enough to the mean that the
// variance does not cancel.
template <typename T>
struct Moments {
  const T* x;
  int64_t channels;
  int64_t pivot_stride;  // 1 with channels last, else the pixels

  template <int V>
  __device__ void Add(int64_t row, int64_t c, float (&sums)[2][V]) const {
    AddElements(row * channels + c, c, sums);
  }
  template <int V>
  __device__ void AddElements(int64_t i, int64_t c, float (&sums)[2][V]) const {
    float values[V];
    LoadFloats(values, x + i);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const float centred = values[k] - ToFloat(x[(c + k) * pivot_stride]);
      sums[0][k] += centred;
      sums[1][k] += centred * centred;
    }
  }
};

// Sums of dy and dy xhat; dy is 0 where relu was.
template <typename T>
struct GradientMoments {
  const T* dy;
  const T* x;
  const float* mean;
  const float* rstd;
  const float* state;  // null: no relu
  int64_t channels;

  template <int V>
  __device__ void Add(int64_t row, int64_t c, float (&sums)[2][V]) const {
    AddElements(row * channels + c, c, sums);
  }
  template <int V>
  __device__ void AddElements(int64_t i, int64_t c, float (&sums)[2][V]) const {
    float g[V], values[V];
    LoadFloats(g, dy + i);
    LoadFloats(values, x + i);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      if (state != nullptr && fmaf(values[k], state[c + k], state[channels + c + k]) <= 0) g[k] = 0;
      sums[0][k] += g[k];
      sums[1][k] += g[k] * (values[k] - mean[c + k]) * rstd[c + k];
    }
  }
};

template <typename T>
struct Plain {
  const T* dy;
  int64_t channels;

  template <int V>
  __device__ void Add(int64_t row, int64_t c, float (&sums)[1][V]) const {
    AddElements(row * channels + c, c, sums);
  }
  template <int V>
  __device__ void AddElements(int64_t i, int64_t, float (&sums)[1][V]) const {
    float g[V];
    LoadFloats(g, dy + i);
#pragma unroll
    for (int k = 0; k < V; ++k) sums[0][k] += g[k];
  }
};

template <typename T>
__global__ void FinishMoments(BatchNormOutputs outputs, const float* partial, Moments<T> moments,
                              const T* bias, const T* gain, float epsilon, ColumnParts parts) {
  for (int64_t c = ThreadIndex(); c < parts.columns; c += ThreadCount()) {
    const auto n = static_cast<float>(parts.rows);
    const float offset = JoinParts<2>(partial, 0, c, parts.columns, parts.parts) / n;
    const float squares = JoinParts<2>(partial, 1, c, parts.columns, parts.parts) / n;
    const float variance = fmaxf(squares - offset * offset, 0);
    const float mean = ToFloat(moments.x[c * moments.pivot_stride]) + offset;
    const float rstd = 1 / sqrtf(variance + epsilon);
    outputs.mean[c] = mean;
    outputs.rstd[c] = rstd;
    outputs.variance[c] = parts.rows > 1 ? variance * (n / (n - 1)) : 0;
    const float factor = gain == nullptr ? rstd : rstd * ToFloat(gain[c]);
    auto* state = static_cast<float*>(outputs.state);
    state[c] = factor;
    state[parts.columns + c] = ToFloat(bias[c]) - mean * factor;
  }
}

template <typename T>
__global__ void FoldRunningValues(float* state, const float* running_mean,
                                  const float* running_variance, const T* bias, const T* gain,
                                  float epsilon, int64_t channels) {
  for (int64_t c = ThreadIndex(); c < channels; c += ThreadCount()) {
    const float rstd = 1 / sqrtf(running_variance[c] + epsilon);
    const float factor = gain == nullptr ? rstd : rstd * ToFloat(gain[c]);
    state[c] = factor;
    state[channels + c] = ToFloat(bias[c]) - running_mean[c] * factor;
  }
}

template <typename T>
__global__ void FoldBias(float* state, const T* bias, int64_t channels) {
  for (int64_t c = ThreadIndex(); c < channels; c += ThreadCount()) {
    state[c] = 1;
    state[channels + c] = ToFloat(bias[c]);
  }
}

// The channel of element i: columns of a matrix, or pixels in a row.
struct ChannelOf {
  int64_t channels;
  int64_t pixels;
  bool is_matrix;
  __device__ int64_t operator()(int64_t i) const {
    return is_matrix ? i % channels : i / pixels % channels;
  }
};

// V elements are of V neighbouring channels (a matrix) or of one.
template <typename T, int V>
__global__ void ScaleAndShift(T* y, const T* x, const float* state, ChannelOf channel_of, bool relu,
                              int64_t n) {
  for (int64_t i = ThreadIndex() * V; i < n; i += ThreadCount() * V) {
    const int64_t c = channel_of(i);
    float values[V];
    LoadFloats(values, x + i);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const int64_t own = channel_of.is_matrix ? c + k : c;
      values[k] = fmaf(values[k], state[own], state[channel_of.channels + own]);
      if (relu && values[k] < 0) values[k] = 0;
    }
    StoreFloats(y + i, values);
  }
}

// Sums of the gradient, per channel: f32[2, C] from the parts, and the parameters' gradients.
template <typename T>
__global__ void FinishGradientMoments(float* sums, BatchNormGradients gradients,
                                      const float* partial, ColumnParts parts) {
  for (int64_t c = ThreadIndex(); c < parts.columns; c += ThreadCount()) {
    const float sum = JoinParts<2>(partial, 0, c, parts.columns, parts.parts);
    const float sum_with_x = JoinParts<2>(partial, 1, c, parts.columns, parts.parts);
    sums[c] = sum;
    sums[parts.columns + c] = sum_with_x;
    static_cast<T*>(gradients.dbias)[c] = FromFloat<T>(sum);
    if (gradients.dgain != nullptr) static_cast<T*>(gradients.dgain)[c] = FromFloat<T>(sum_with_x);
  }
}

// dx = gain rstd (dy - mean of dy - xhat mean of dy xhat); state[c] is gain rstd.
template <typename T, int V>
__global__ void GradInput(T* dx, const T* dy, const T* x, const float* mean, const float* rstd,
                          const float* state, const float* sums, ChannelOf channel_of, bool relu,
                          float rows, int64_t n) {
  const int64_t channels = channel_of.channels;
  for (int64_t i = ThreadIndex() * V; i < n; i += ThreadCount() * V) {
    const int64_t c = channel_of(i);
    float g[V], values[V];
    LoadFloats(g, dy + i);
    LoadFloats(values, x + i);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const int64_t own = channel_of.is_matrix ? c + k : c;
      const float factor = state[own];
      if (relu && fmaf(values[k], factor, state[channels + own]) <= 0) g[k] = 0;
      const float normal = (values[k] - mean[own]) * rstd[own];
      g[k] = factor * (g[k] - (sums[own] + normal * sums[channels + own]) / rows);
    }
    StoreFloats(dx + i, g);
  }
}

template <typename T>
__global__ void StoreSums(T* to, const float* partial, ColumnParts parts) {
  for (int64_t c = ThreadIndex(); c < parts.columns; c += ThreadCount()) {
    to[c] = FromFloat<T>(JoinParts<1>(partial, 0, c, parts.columns, parts.parts));
  }
}

// Whether vectors of V elements stay inside a row of channels (a matrix) or of pixels.
template <typename T>
bool Vectorises(const BatchNormShape& shape) {
  return (IsMatrix(shape) ? shape.channels : shape.pixels) % kVector<T> == 0;
}

template <typename T>
cudaError_t LaunchScaleAndShift(void* y, const void* x, const float* state,
                                const BatchNormShape& shape, cudaStream_t stream) {
  const int64_t n = Rows(shape) * shape.channels;
  const bool vectorises = Vectorises<T>(shape);
  const auto kernel = vectorises ? ScaleAndShift<T, kVector<T>> : ScaleAndShift<T, 1>;
  return Launch(kernel, Strided(vectorises ? n / kVector<T> : n), kThreads, 0, stream,
                static_cast<T*>(y), static_cast<const T*>(x), state,
                ChannelOf{shape.channels, shape.pixels, IsMatrix(shape)},
                shape.activation == BatchNormActivation::kRelu, n);
}

}  // namespace

int64_t BatchNormStateBytes(const BatchNormShape& shape) {
  return 2 * shape.channels * static_cast<int64_t>(sizeof(float));
}

// The sums of a channel, then the parts.
int64_t BatchNormWorkspaceBytes(const BatchNormShape& shape) {
  return BatchNormStateBytes(shape) + PartsOf(shape).WorkspaceBytes(2);
}

cudaError_t BatchNorm(const BatchNormOutputs& outputs, const void* x, const void* bias,
                      const void* gain, float epsilon, const BatchNormShape& shape, void* workspace,
                      cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    auto* partial = static_cast<float*>(workspace);
    const Moments<T> moments = {static_cast<const T*>(x), shape.channels,
                                IsMatrix(shape) ? 1 : shape.pixels};
    MUSTER_RETURN_IF_CUDA_ERROR(LaunchSums<2>(partial, shape, moments, stream));
    MUSTER_RETURN_IF_CUDA_ERROR(Launch(
        FinishMoments<T>, Strided(shape.channels), kThreads, 0, stream, outputs, partial, moments,
        static_cast<const T*>(bias), static_cast<const T*>(gain), epsilon, PartsOf(shape)));
    return LaunchScaleAndShift<T>(outputs.y, x, static_cast<const float*>(outputs.state), shape,
                                  stream);
  });
}

cudaError_t BatchNormGrad(const BatchNormGradients& gradients, const void* dy, const void* x,
                          const float* mean, const float* rstd, const void* state,
                          const BatchNormShape& shape, void* workspace, cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    const bool relu = shape.activation == BatchNormActivation::kRelu;
    const auto* of_dy = static_cast<const T*>(dy);
    const auto* of_x = static_cast<const T*>(x);
    const auto* of_state = static_cast<const float*>(state);
    auto* sums = static_cast<float*>(workspace);
    float* partial = sums + 2 * shape.channels;
    const GradientMoments<T> moments = {of_dy,         of_x, mean, rstd, relu ? of_state : nullptr,
                                        shape.channels};
    MUSTER_RETURN_IF_CUDA_ERROR(LaunchSums<2>(partial, shape, moments, stream));
    MUSTER_RETURN_IF_CUDA_ERROR(Launch(FinishGradientMoments<T>, Strided(shape.channels), kThreads,
                                       0, stream, sums, gradients, partial, PartsOf(shape)));
    const int64_t n = Rows(shape) * shape.channels;
    const bool vectorises = Vectorises<T>(shape);
    const auto kernel = vectorises ? GradInput<T, kVector<T>> : GradInput<T, 1>;
    return Launch(kernel, Strided(vectorises ? n / kVector<T> : n), kThreads, 0, stream,
                  static_cast<T*>(gradients.dx), of_dy, of_x, mean, rstd, of_state, sums,
                  ChannelOf{shape.channels, shape.pixels, IsMatrix(shape)}, relu,
                  static_cast<float>(Rows(shape)), n);
  });
}

cudaError_t BatchNormInference(void* y, const void* x, const float* running_mean,
                               const float* running_variance, const void* bias, const void* gain,
                               float epsilon, const BatchNormShape& shape, void* workspace,
                               cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    auto* state = static_cast<float*>(workspace);
    MUSTER_RETURN_IF_CUDA_ERROR(Launch(FoldRunningValues<T>, Strided(shape.channels), kThreads, 0,
                                       stream, state, running_mean, running_variance,
                                       static_cast<const T*>(bias), static_cast<const T*>(gain),
                                       epsilon, shape.channels));
    return LaunchScaleAndShift<T>(y, x, state, shape, stream);
  });
}

cudaError_t AddChannelBias(void* y, const void* x, const void* bias, const BatchNormShape& shape,
                           void* workspace, cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    auto* state = static_cast<float*>(workspace);
    MUSTER_RETURN_IF_CUDA_ERROR(Launch(FoldBias<T>, Strided(shape.channels), kThreads, 0, stream,
                                       state, static_cast<const T*>(bias), shape.channels));
    return LaunchScaleAndShift<T>(y, x, state, shape, stream);
  });
}

cudaError_t SumChannelBias(void* dbias, const void* dy, const BatchNormShape& shape,
                           void* workspace, cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    auto* partial = static_cast<float*>(workspace);
    const Plain<T> plain = {static_cast<const T*>(dy), shape.channels};
    MUSTER_RETURN_IF_CUDA_ERROR(LaunchSums<1>(partial, shape, plain, stream));
    return Launch(StoreSums<T>, Strided(shape.channels), kThreads, 0, stream,
                  static_cast<T*>(dbias), partial, PartsOf(shape));
  });
}

}  // namespace muster::kernels::cuda
