#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {
namespace {

// Returns whether x is summed as a matrix of B S rows, by columns (channels last). Otherwise one
// block sums each channel and part of the batch's pixels. Both produce partial sums f32[parts, N,
// C].
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
    const auto own = f.template At<1>(c, /*step=*/0);
    float sums[N][1] = {};
    for (int64_t r = first + threadIdx.x; r < last; r += kThreads) {
      const int64_t b = r / pixels;
      const int64_t i = (b * shape.columns + c) * pixels + r - b * pixels;
      own.Add(own.Load(r, i), r, i, sums);
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float sum = BlockSum(sums[k][0]);
      if (threadIdx.x == 0) partial[(int64_t{blockIdx.y} * N + k) * shape.columns + c] = sum;
    }
  }
}

template <int N, typename T, typename F>
cudaError_t LaunchSums(float* partial, const BatchNormShape& shape, F f, cudaStream_t stream) {
  const ColumnParts parts = PartsOf(shape);
  if (IsMatrix(shape)) return LaunchSumColumns<N, T>(partial, parts, f, stream);
  const auto blocks = static_cast<unsigned>(std::min(shape.channels, kBlocksMax));
  return Launch(SumChannels<N, F>, dim3(blocks, static_cast<unsigned>(parts.parts)), kThreads, 0,
                stream, partial, parts, shape.pixels, f);
}

// Loads the numbers of V channels. `step` is 1 for neighbouring channels, 0 for one channel
// repeated V times.
template <int V>
__device__ void LoadChannels(float (&to)[V], const float* from, int64_t c, int step) {
#pragma unroll
  for (int k = 0; k < V; ++k) to[k] = from[c + k * step];
}

// Sums of x and of its square, both less the channel's first element. That is near enough to the
// mean to avoid cancellation in the variance.
template <typename T>
struct Moments {
  const T* x;
  int64_t pivot_stride;  // 1 with channels last, else the pixels

  template <int V>
  struct Columns {
    const T* x;
    float pivot[V];

    __device__ Vector<T, V> Load(int64_t, int64_t i) const { return cuda::Load<V>(x + i); }
    __device__ void Add(const Vector<T, V>& loaded, int64_t, int64_t, float (&sums)[2][V]) const {
      float values[V];
      ToFloats(values, loaded);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const float centred = values[k] - pivot[k];
        sums[0][k] += centred;
        sums[1][k] += centred * centred;
      }
    }
  };
  template <int V>
  __device__ Columns<V> At(int64_t c, int step) const {
    Columns<V> own = {.x = x};
#pragma unroll
    for (int k = 0; k < V; ++k) own.pivot[k] = ToFloat(x[(c + k * step) * pivot_stride]);
    return own;
  }
};

// How the derivative finds where relu was active.
enum class Relu {
  kNone,
  kOfState,          // by the normalised value, computed again from the state
  kOfOutput,         // by the output, because an addend came before relu
  kOfOutputWithTwo,  // also by the output; dy is the sum of two tensors
};

constexpr bool IsOfOutput(Relu relu) {
  return relu == Relu::kOfOutput || relu == Relu::kOfOutputWithTwo;
}

// Sums of g and g (x - mean), where g is the gradient of the normalised value: dy, or 0 where relu
// was inactive. If relu is known by the output, g is stored.
template <typename T, Relu kRelu>
struct GradientMoments {
  const T* dy;
  const T* dy_second;  // only for Relu::kOfOutputWithTwo
  const T* x;
  const float* mean;
  const float* state;  // only for Relu::kOfState
  int64_t channels;
  const T* output;  // only if relu is known by it
  T* g;

  template <int V>
  struct Loaded {
    Vector<T, V> dy, dy_second, x, output;
  };

  template <int V>
  struct Columns {
    GradientMoments all;
    float mean[V], factor[V], summand[V];

    __device__ Loaded<V> Load(int64_t, int64_t i) const {
      Loaded<V> loaded;
      loaded.dy = cuda::Load<V>(all.dy + i);
      loaded.x = cuda::Load<V>(all.x + i);
      if constexpr (IsOfOutput(kRelu)) loaded.output = cuda::Load<V>(all.output + i);
      if constexpr (kRelu == Relu::kOfOutputWithTwo) {
        loaded.dy_second = cuda::Load<V>(all.dy_second + i);
      }
      return loaded;
    }
    __device__ void Add(const Loaded<V>& loaded, int64_t, int64_t i, float (&sums)[2][V]) const {
      float g[V], values[V];
      ToFloats(g, loaded.dy);
      ToFloats(values, loaded.x);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        if constexpr (kRelu == Relu::kOfState) {
          if (fmaf(values[k], factor[k], summand[k]) <= 0) g[k] = 0;
        }
        if constexpr (kRelu == Relu::kOfOutputWithTwo) {
          g[k] += ToFloat(loaded.dy_second.lanes[k]);
        }
        if constexpr (IsOfOutput(kRelu)) {
          g[k] = ToFloat(loaded.output.lanes[k]) > 0 ? g[k] : 0;
        }
        sums[0][k] += g[k];
        sums[1][k] += g[k] * (values[k] - mean[k]);
      }
      if constexpr (IsOfOutput(kRelu)) StoreFloats(all.g + i, g);
    }
  };
  template <int V>
  __device__ Columns<V> At(int64_t c, int step) const {
    Columns<V> own = {.all = *this};
    LoadChannels(own.mean, mean, c, step);
    if constexpr (kRelu == Relu::kOfState) {
      LoadChannels(own.factor, state, c, step);
      LoadChannels(own.summand, state + channels, c, step);
    }
    return own;
  }
};

template <typename T>
struct Plain {
  const T* dy;

  template <int V>
  struct Columns {
    const T* dy;

    __device__ Vector<T, V> Load(int64_t, int64_t i) const { return cuda::Load<V>(dy + i); }
    __device__ void Add(const Vector<T, V>& loaded, int64_t, int64_t, float (&sums)[1][V]) const {
#pragma unroll
      for (int k = 0; k < V; ++k) sums[0][k] += ToFloat(loaded.lanes[k]);
    }
  };
  template <int V>
  __device__ Columns<V> At(int64_t, int) const {
    return {dy};
  }
};

// Writes the outputs of a channel, from its moments over `n` values.
template <typename T>
__device__ void StoreChannel(const BatchNormOutputs& outputs, int64_t c, int64_t channels,
                             float mean, float variance, float n, const T* bias, const T* gain,
                             float epsilon) {
  const float rstd = 1 / sqrtf(variance + epsilon);
  outputs.mean[c] = mean;
  outputs.rstd[c] = rstd;
  outputs.variance[c] = n > 1 ? variance * (n / (n - 1)) : 0;
  const float factor = gain == nullptr ? rstd : rstd * ToFloat(gain[c]);
  auto* state = static_cast<float*>(outputs.state);
  state[c] = factor;
  state[channels + c] = ToFloat(bias[c]) - mean * factor;
}

template <typename T>
__global__ void FinishMoments(BatchNormOutputs outputs, const float* partial, Moments<T> moments,
                              const T* bias, const T* gain, float epsilon, ColumnParts parts) {
  ForJoined<2>(partial, parts.columns, parts.parts, [&](int64_t c, const float(&sums)[2]) {
    const auto n = static_cast<float>(parts.rows);
    const float offset = sums[0] / n, squares = sums[1] / n;
    const float variance = fmaxf(squares - offset * offset, 0);
    const float mean = ToFloat(moments.x[c * moments.pivot_stride]) + offset;
    StoreChannel(outputs, c, parts.columns, mean, variance, n, bias, gain, epsilon);
  });
}

// The numbers of a device in BatchNormSums: its count of values, then two of every channel. The
// first one is the mean, or the sum of g. The second one is the sum of squares around the mean, or
// the sum of g (x - mean).
struct DeviceSums {
  double* numbers;
  int64_t channels;

  __device__ double& count() const { return numbers[0]; }
  __device__ double& first(int64_t c) const { return numbers[1 + c]; }
  __device__ double& second(int64_t c) const { return numbers[1 + channels + c]; }
  __device__ DeviceSums of(int device) const {
    return {numbers + device * (1 + 2 * channels), channels};
  }
};

// The mean is the pivot plus an offset: in f64, because each device has another pivot.
template <typename T>
__global__ void StoreMoments(DeviceSums own, const float* partial, Moments<T> moments,
                             ColumnParts parts) {
  ForJoined<2>(partial, parts.columns, parts.parts, [&](int64_t c, const float(&sums)[2]) {
    const auto n = static_cast<double>(parts.rows);
    const double offset = sums[0] / n;
    if (c == 0) own.count() = n;
    own.first(c) = ToFloat(moments.x[c * moments.pivot_stride]) + offset;
    own.second(c) = fmax(sums[1] - n * offset * offset, 0.0);
  });
}

// Merges the moments of the devices as kernels/cpu/batch_norm.cc does.
template <typename T>
__global__ void MergeMoments(BatchNormOutputs outputs, DeviceSums all, int devices, const T* bias,
                             const T* gain, float epsilon) {
  for (int64_t c = ThreadIndex(); c < all.channels; c += ThreadCount()) {
    double count = 0, mean = 0, squares = 0;
    for (int device = 0; device < devices; ++device) {
      const DeviceSums part = all.of(device);
      const double apart = part.first(c) - mean, before = count;
      count += part.count();
      mean += apart * (part.count() / count);
      squares += part.second(c) + apart * apart * before * (part.count() / count);
    }
    StoreChannel(outputs, c, all.channels, static_cast<float>(mean),
                 static_cast<float>(squares / count), static_cast<float>(count), bias, gain,
                 epsilon);
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

// Calls f.At<V>(first of V channels, step).Apply(first of V elements) for all elements. V divides
// the channels of a matrix, or the pixels. In a matrix a thread keeps the same channels, and their
// numbers in registers.
template <int V, typename F>
__global__ void ForVectors(F f, bool is_matrix, int64_t channels, int64_t pixels, int64_t vectors) {
  if (!is_matrix) {
    for (int64_t v = ThreadIndex(); v < vectors; v += ThreadCount()) {
      f.template At<V>(v * V / pixels % channels, /*step=*/0).Apply(v * V);
    }
    return;
  }
  const int64_t of_row = channels / V;
  const int64_t stride = ThreadCount() / of_row * of_row;
  if (ThreadIndex() >= stride) return;
  const auto own = f.template At<V>(ThreadIndex() % of_row * V, /*step=*/1);
  for (int64_t v = ThreadIndex(); v < vectors; v += stride) own.Apply(v * V);
}

template <typename T, typename F>
cudaError_t LaunchForVectors(F f, const BatchNormShape& shape, cudaStream_t stream) {
  const int64_t row = IsMatrix(shape) ? shape.channels : shape.pixels;
  const int V = row % kVector<T> == 0 ? kVector<T> : 1;
  const int64_t vectors = Rows(shape) * shape.channels / V;
  // Launch enough blocks to fill a device and cover a whole row. More would cost time, because each
  // thread first reads the numbers of its channels.
  const int64_t blocks =
      std::max(std::clamp<int64_t>(CeilDiv(vectors, kThreads), 1, kBlocksMax / 4),
               CeilDiv(shape.channels / (IsMatrix(shape) ? V : 1), kThreads));
  const auto kernel = V == 1 ? ForVectors<1, F> : ForVectors<kVector<T>, F>;
  return Launch(kernel, dim3(static_cast<unsigned>(blocks)), kThreads, 0, stream, f,
                IsMatrix(shape), shape.channels, shape.pixels, vectors);
}

// y = x factor + summand (+ addend), then relu.
template <typename T>
struct Scaling {
  T* y;
  const T* x;
  const T* addend;     // or null
  const float* state;  // factors, then summands
  int64_t channels;
  bool relu;

  template <int V>
  struct Columns {
    Scaling all;
    float factor[V], summand[V];

    __device__ void Apply(int64_t i) const {
      float values[V], added[V] = {};
      LoadFloats(values, all.x + i);
      if (all.addend != nullptr) LoadFloats(added, all.addend + i);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        values[k] = fmaf(values[k], factor[k], summand[k]) + added[k];
        if (all.relu && values[k] < 0) values[k] = 0;
      }
      StoreFloats(all.y + i, values);
    }
  };
  template <int V>
  __device__ Columns<V> At(int64_t c, int step) const {
    Columns<V> own = {.all = *this};
    LoadChannels(own.factor, state, c, step);
    LoadChannels(own.summand, state + channels, c, step);
    return own;
  }
};

// Computes the factors a, b, c f32[3, C] of a channel from its sums over `n` values.
//   dx = gain rstd (g - mean of g - xhat mean of g xhat) = a g + b x + c,  xhat = (x - mean) rstd.
// state[c] is gain rstd.
__device__ void StoreLine(float* line, int64_t c, int64_t channels, float sum, float sum_with_x,
                          float n, float mean, float rstd, float factor) {
  const float slope = -factor * rstd * sum_with_x / n;
  line[c] = factor;
  line[channels + c] = slope;
  line[2 * channels + c] = -factor * sum / n - slope * mean;
}

// Writes the gradients of the channel's parameters, from the sums of this device.
template <typename T>
__device__ void StoreParameterGradients(const BatchNormGradients& gradients, int64_t c, float sum,
                                        float sum_with_x) {
  static_cast<T*>(gradients.dbias)[c] = FromFloat<T>(sum);
  if (gradients.dgain != nullptr) static_cast<T*>(gradients.dgain)[c] = FromFloat<T>(sum_with_x);
}

template <typename T>
__global__ void FinishGradientMoments(float* line, BatchNormGradients gradients,
                                      const float* partial, const float* mean, const float* rstd,
                                      const float* state, ColumnParts parts) {
  ForJoined<2>(partial, parts.columns, parts.parts, [&](int64_t c, const float(&sums)[2]) {
    const float sum = sums[0], sum_with_x = sums[1] * rstd[c];
    StoreLine(line, c, parts.columns, sum, sum_with_x, static_cast<float>(parts.rows), mean[c],
              rstd[c], state[c]);
    StoreParameterGradients<T>(gradients, c, sum, sum_with_x);
  });
}

__global__ void StoreGradientMoments(DeviceSums own, const float* partial, ColumnParts parts) {
  ForJoined<2>(partial, parts.columns, parts.parts, [&](int64_t c, const float(&sums)[2]) {
    if (c == 0) own.count() = static_cast<double>(parts.rows);
    own.first(c) = sums[0];
    own.second(c) = sums[1];
  });
}

template <typename T>
__global__ void MergeGradientMoments(float* line, BatchNormGradients gradients, DeviceSums own,
                                     DeviceSums all, int devices, const float* mean,
                                     const float* rstd, const float* state) {
  for (int64_t c = ThreadIndex(); c < all.channels; c += ThreadCount()) {
    double count = 0, sum = 0, dot = 0;
    for (int device = 0; device < devices; ++device) {
      const DeviceSums part = all.of(device);
      count += part.count();
      sum += part.first(c);
      dot += part.second(c);
    }
    StoreLine(line, c, all.channels, static_cast<float>(sum), static_cast<float>(dot) * rstd[c],
              static_cast<float>(count), mean[c], rstd[c], state[c]);
    StoreParameterGradients<T>(gradients, c, static_cast<float>(own.first(c)),
                               static_cast<float>(own.second(c)) * rstd[c]);
  }
}

template <typename T>
struct GradInput {
  T* dx;
  const T* g;
  const T* x;
  const float* line;      // a, b, c
  const float* summands;  // the state's summands, as its factors are a; null: no relu
  int64_t channels;

  template <int V>
  struct Columns {
    GradInput all;
    float a[V], b[V], c[V], summand[V];

    __device__ void Apply(int64_t i) const {
      float g[V], values[V];
      LoadFloats(g, all.g + i);
      LoadFloats(values, all.x + i);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        if (all.summands != nullptr && fmaf(values[k], a[k], summand[k]) <= 0) g[k] = 0;
        g[k] = fmaf(a[k], g[k], fmaf(b[k], values[k], c[k]));
      }
      StoreFloats(all.dx + i, g);
    }
  };
  template <int V>
  __device__ Columns<V> At(int64_t channel, int step) const {
    Columns<V> own = {.all = *this};
    LoadChannels(own.a, line, channel, step);
    LoadChannels(own.b, line + channels, channel, step);
    LoadChannels(own.c, line + 2 * channels, channel, step);
    if (summands != nullptr) LoadChannels(own.summand, summands, channel, step);
    return own;
  }
};

template <typename T>
__global__ void StoreSums(T* to, const float* partial, ColumnParts parts) {
  ForJoined<1>(partial, parts.columns, parts.parts,
               [&](int64_t c, const float(&sums)[1]) { to[c] = FromFloat<T>(sums[0]); });
}

template <typename T>
cudaError_t LaunchScaling(void* y, const void* x, const void* addend, const float* state,
                          const BatchNormShape& shape, cudaStream_t stream) {
  const Scaling<T> scaling = {static_cast<T*>(y),
                              static_cast<const T*>(x),
                              static_cast<const T*>(addend),
                              state,
                              shape.channels,
                              shape.activation == BatchNormActivation::kRelu};
  return LaunchForVectors<T>(scaling, shape, stream);
}

int64_t SumsBytes(const BatchNormShape& shape) {
  if (shape.devices == 1) return 0;
  const int64_t size = 1 + 2 * shape.channels;
  return CeilDiv((1 + shape.devices) * size, 2) * 2 * static_cast<int64_t>(sizeof(double));
}

float* LineIn(const BatchNormShape& shape, void* workspace) {
  return reinterpret_cast<float*>(static_cast<char*>(workspace) + SumsBytes(shape));
}

float* PartialSums(const BatchNormShape& shape, void* workspace) {
  return LineIn(shape, workspace) + 3 * shape.channels;
}

template <typename T>
Moments<T> MomentsOf(const void* x, const BatchNormShape& shape) {
  return {static_cast<const T*>(x), IsMatrix(shape) ? 1 : shape.pixels};
}

// Returns whether the derivative finds from the state where relu was active.
bool FindsRelu(const BatchNormGradients& gradients, const BatchNormShape& shape) {
  return shape.activation == BatchNormActivation::kRelu && gradients.daddend == nullptr;
}

}  // namespace

int64_t BatchNormStateBytes(const BatchNormShape& shape) {
  return 2 * shape.channels * static_cast<int64_t>(sizeof(float));
}

// The workspace has three numbers per channel, then the partial sums. With several devices the sums
// of this device and of all devices come first, because they are 8-byte aligned.
int64_t BatchNormWorkspaceBytes(const BatchNormShape& shape) {
  return SumsBytes(shape) + 3 * shape.channels * static_cast<int64_t>(sizeof(float)) +
         PartsOf(shape).WorkspaceBytes(2);
}

BatchNormSums BatchNormSumsIn(const BatchNormShape& shape, void* workspace) {
  const int64_t size = 1 + 2 * shape.channels;
  auto* own = static_cast<double*>(workspace);
  return {own, own + size, size};
}

cudaError_t BatchNormMoments(const void* x, const BatchNormShape& shape, void* workspace,
                             cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    float* partial = PartialSums(shape, workspace);
    const Moments<T> moments = MomentsOf<T>(x, shape);
    MUSTER_RETURN_IF_CUDA_ERROR((LaunchSums<2, T>(partial, shape, moments, stream)));
    if (shape.devices == 1) return cudaSuccess;
    const DeviceSums own = {BatchNormSumsIn(shape, workspace).own, shape.channels};
    return Launch(StoreMoments<T>, JoiningBlocks(shape.channels), kThreads, 0, stream, own, partial,
                  moments, PartsOf(shape));
  });
}

cudaError_t BatchNormApply(const BatchNormOutputs& outputs, const void* x, const void* addend,
                           const void* bias, const void* gain, float epsilon,
                           const BatchNormShape& shape, void* workspace, cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    const auto* of_bias = static_cast<const T*>(bias);
    const auto* of_gain = static_cast<const T*>(gain);
    if (shape.devices == 1) {
      MUSTER_RETURN_IF_CUDA_ERROR(Launch(FinishMoments<T>, JoiningBlocks(shape.channels), kThreads,
                                         0, stream, outputs, PartialSums(shape, workspace),
                                         MomentsOf<T>(x, shape), of_bias, of_gain, epsilon,
                                         PartsOf(shape)));
    } else {
      const DeviceSums all = {BatchNormSumsIn(shape, workspace).all, shape.channels};
      MUSTER_RETURN_IF_CUDA_ERROR(Launch(MergeMoments<T>, Strided(shape.channels), kThreads, 0,
                                         stream, outputs, all, shape.devices, of_bias, of_gain,
                                         epsilon));
    }
    return LaunchScaling<T>(outputs.y, x, addend, static_cast<const float*>(outputs.state), shape,
                            stream);
  });
}

cudaError_t BatchNormGradSums(const BatchNormGradients& gradients, const void* dy,
                              const void* dy_second, const void* x, const void* y,
                              const float* mean, const void* state, const BatchNormShape& shape,
                              void* workspace, cudaStream_t stream) {
  const bool has_addend = gradients.daddend != nullptr;
  if (has_addend != (y != nullptr)) return cudaErrorInvalidValue;
  if (dy_second != nullptr && !has_addend) return cudaErrorInvalidValue;
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    float* partial = PartialSums(shape, workspace);
    const auto sum = [&]<Relu kRelu>() {
      const GradientMoments<T, kRelu> moments = {.dy = static_cast<const T*>(dy),
                                                 .dy_second = static_cast<const T*>(dy_second),
                                                 .x = static_cast<const T*>(x),
                                                 .mean = mean,
                                                 .state = static_cast<const float*>(state),
                                                 .channels = shape.channels,
                                                 .output = static_cast<const T*>(y),
                                                 .g = static_cast<T*>(gradients.daddend)};
      return LaunchSums<2, T>(partial, shape, moments, stream);
    };
    MUSTER_RETURN_IF_CUDA_ERROR(
        dy_second != nullptr          ? sum.template operator()<Relu::kOfOutputWithTwo>()
        : has_addend                  ? sum.template operator()<Relu::kOfOutput>()
        : FindsRelu(gradients, shape) ? sum.template operator()<Relu::kOfState>()
                                      : sum.template operator()<Relu::kNone>());
    if (shape.devices == 1) return cudaSuccess;
    const DeviceSums own = {BatchNormSumsIn(shape, workspace).own, shape.channels};
    return Launch(StoreGradientMoments, JoiningBlocks(shape.channels), kThreads, 0, stream, own,
                  partial, PartsOf(shape));
  });
}

cudaError_t BatchNormGradApply(const BatchNormGradients& gradients, const void* dy, const void* x,
                               const float* mean, const float* rstd, const void* state,
                               const BatchNormShape& shape, void* workspace, cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    const auto* of_state = static_cast<const float*>(state);
    float* line = LineIn(shape, workspace);
    if (shape.devices == 1) {
      MUSTER_RETURN_IF_CUDA_ERROR(
          Launch(FinishGradientMoments<T>, JoiningBlocks(shape.channels), kThreads, 0, stream, line,
                 gradients, PartialSums(shape, workspace), mean, rstd, of_state, PartsOf(shape)));
    } else {
      const BatchNormSums sums = BatchNormSumsIn(shape, workspace);
      MUSTER_RETURN_IF_CUDA_ERROR(
          Launch(MergeGradientMoments<T>, Strided(shape.channels), kThreads, 0, stream, line,
                 gradients, DeviceSums{sums.own, shape.channels},
                 DeviceSums{sums.all, shape.channels}, shape.devices, mean, rstd, of_state));
    }
    const void* g = gradients.daddend != nullptr ? gradients.daddend : dy;
    const GradInput<T> grad_input = {
        static_cast<T*>(gradients.dx),
        static_cast<const T*>(g),
        static_cast<const T*>(x),
        line,
        FindsRelu(gradients, shape) ? of_state + shape.channels : nullptr,
        shape.channels};
    return LaunchForVectors<T>(grad_input, shape, stream);
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
    return LaunchScaling<T>(y, x, /*addend=*/nullptr, state, shape, stream);
  });
}

cudaError_t AddChannelBias(void* y, const void* x, const void* bias, const BatchNormShape& shape,
                           void* workspace, cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    auto* state = static_cast<float*>(workspace);
    MUSTER_RETURN_IF_CUDA_ERROR(Launch(FoldBias<T>, Strided(shape.channels), kThreads, 0, stream,
                                       state, static_cast<const T*>(bias), shape.channels));
    return LaunchScaling<T>(y, x, /*addend=*/nullptr, state, shape, stream);
  });
}

cudaError_t SumChannelBias(void* dbias, const void* dy, const BatchNormShape& shape,
                           void* workspace, cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    auto* partial = static_cast<float*>(workspace);
    const Plain<T> plain = {static_cast<const T*>(dy)};
    MUSTER_RETURN_IF_CUDA_ERROR((LaunchSums<1, T>(partial, shape, plain, stream)));
    return Launch(StoreSums<T>, JoiningBlocks(shape.channels), kThreads, 0, stream,
                  static_cast<T*>(dbias), partial, PartsOf(shape));
  });
}

}  // namespace muster::kernels::cuda
