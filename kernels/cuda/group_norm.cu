#include "kernels/cuda/group_norm.h"
#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {
namespace {

template <typename T>
__global__ void Normalise(T* y, float* means, float* rstds, const T* x, const T* gain,
                          const T* bias, float epsilon, GroupNormShape shape) {
  const int64_t channels = shape.channels / shape.groups;
  const int64_t n = channels * shape.pixels;
  for (int64_t group = blockIdx.x; group < shape.batch * shape.groups; group += gridDim.x) {
    const T* from = x + group * n;
    T* to = y + group * n;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += ToFloat(from[i]);
    const float mean = BlockSum(sum) / static_cast<float>(n);
    float squares = 0;
    for (int64_t i = threadIdx.x; i < n; i += kThreads) {
      const float centred = ToFloat(from[i]) - mean;
      squares += centred * centred;
    }
    const float rstd = 1 / sqrtf(BlockSum(squares) / static_cast<float>(n) + epsilon);
    const int64_t first_channel = group % shape.groups * channels;
    for (int64_t i = threadIdx.x; i < n; i += kThreads) {
      const int64_t c = first_channel + i / shape.pixels;
      to[i] = FromFloat<T>((ToFloat(from[i]) - mean) * rstd * ToFloat(gain[c]) + ToFloat(bias[c]));
    }
    if (threadIdx.x == 0) {
      means[group] = mean;
      rstds[group] = rstd;
    }
  }
}

template <typename T>
__global__ void GradInput(T* dx, const T* dy, const T* x, const T* gain, const float* means,
                          const float* rstds, GroupNormShape shape) {
  const int64_t channels = shape.channels / shape.groups;
  const int64_t n = channels * shape.pixels;
  for (int64_t group = blockIdx.x; group < shape.batch * shape.groups; group += gridDim.x) {
    const float mean = means[group], rstd = rstds[group];
    const int64_t start = group * n, first_channel = group % shape.groups * channels;
    float sum = 0, sum_with_x = 0;
    for (int64_t i = threadIdx.x; i < n; i += kThreads) {
      const float scaled = ToFloat(dy[start + i]) * ToFloat(gain[first_channel + i / shape.pixels]);
      sum += scaled;
      sum_with_x += scaled * (ToFloat(x[start + i]) - mean) * rstd;
    }
    sum = BlockSum(sum) / static_cast<float>(n);
    sum_with_x = BlockSum(sum_with_x) / static_cast<float>(n);
    for (int64_t i = threadIdx.x; i < n; i += kThreads) {
      const float scaled = ToFloat(dy[start + i]) * ToFloat(gain[first_channel + i / shape.pixels]);
      const float normal = (ToFloat(x[start + i]) - mean) * rstd;
      dx[start + i] = FromFloat<T>(rstd * (scaled - sum - normal * sum_with_x));
    }
  }
}

template <typename T>
__global__ void GradParameters(T* dgain, T* dbias, const T* dy, const T* x, const float* means,
                               const float* rstds, GroupNormShape shape) {
  const int64_t channels_of_group = shape.channels / shape.groups;
  for (int64_t c = blockIdx.x; c < shape.channels; c += gridDim.x) {
    float sum = 0, sum_with_x = 0;
    for (int64_t b = 0; b < shape.batch; ++b) {
      const int64_t group = b * shape.groups + c / channels_of_group;
      const float mean = means[group], rstd = rstds[group];
      const int64_t start = (b * shape.channels + c) * shape.pixels;
      for (int64_t i = threadIdx.x; i < shape.pixels; i += kThreads) {
        const float g = ToFloat(dy[start + i]);
        sum += g;
        sum_with_x += g * (ToFloat(x[start + i]) - mean) * rstd;
      }
    }
    sum = BlockSum(sum);
    sum_with_x = BlockSum(sum_with_x);
    if (threadIdx.x == 0) {
      dgain[c] = FromFloat<T>(sum_with_x);
      dbias[c] = FromFloat<T>(sum);
    }
  }
}

dim3 Blocks(int64_t n) { return dim3(static_cast<unsigned>(std::min(n, kBlocksMax))); }

}  // namespace

cudaError_t GroupNorm(void* y, float* mean, float* rstd, const void* x, const void* gain,
                      const void* bias, float epsilon, const GroupNormShape& shape,
                      cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    return Launch(Normalise<T>, Blocks(shape.batch * shape.groups), kThreads, 0, stream,
                  static_cast<T*>(y), mean, rstd, static_cast<const T*>(x),
                  static_cast<const T*>(gain), static_cast<const T*>(bias), epsilon, shape);
  });
}

cudaError_t GroupNormGradInput(void* dx, const void* dy, const void* x, const void* gain,
                               const float* mean, const float* rstd, const GroupNormShape& shape,
                               cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    return Launch(GradInput<T>, Blocks(shape.batch * shape.groups), kThreads, 0, stream,
                  static_cast<T*>(dx), static_cast<const T*>(dy), static_cast<const T*>(x),
                  static_cast<const T*>(gain), mean, rstd, shape);
  });
}

cudaError_t GroupNormGradParameters(void* dgain, void* dbias, const void* dy, const void* x,
                                    const float* mean, const float* rstd,
                                    const GroupNormShape& shape, cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    return Launch(GradParameters<T>, Blocks(shape.channels), kThreads, 0, stream,
                  static_cast<T*>(dgain), static_cast<T*>(dbias), static_cast<const T*>(dy),
                  static_cast<const T*>(x), mean, rstd, shape);
  });
}

}  // namespace muster::kernels::cuda
