#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/softmax.h"

namespace muster::kernels::cuda {
namespace {

dim3 Rows(int64_t rows) { return dim3(static_cast<unsigned>(std::min(rows, kBlocksMax))); }

// The largest element seen, and the sum of exp(element - maximum).
struct Exponentials {
  float maximum = -INFINITY;
  float sum = 0;

  // Adds N values at once, so that their exponentials do not wait for each other.
  template <int N>
  __device__ void Add(const float (&values)[N]) {
    float larger = maximum;
#pragma unroll
    for (float x : values) larger = fmaxf(larger, x);
    // The sum stays 0 if all values are -inf; NaN stays NaN.
    const float zero = larger == -INFINITY ? 0 : larger;
    float added = 0;
#pragma unroll
    for (float x : values) added += expf(x - zero);
    sum = sum * expf(maximum - zero) + added;
    maximum = larger;
  }
  __device__ void Add(const Exponentials& other) {
    const float larger = fmaxf(maximum, other.maximum);
    if (larger == -INFINITY) {
      sum += other.sum;  // both 0, or NaN
      return;
    }
    sum = sum * expf(maximum - larger) + other.sum * expf(other.maximum - larger);
    maximum = larger;
  }
  __device__ float LogSum() const { return maximum + logf(sum); }
};

// Joins the results of the block, for every thread; always in the same order.
__device__ Exponentials JoinBlock(Exponentials own) {
  __shared__ float maxima[kThreads / kWarp], sums[kThreads / kWarp];
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) {
    Exponentials other;
    other.maximum = __shfl_xor_sync(kEveryLane, own.maximum, lane);
    other.sum = __shfl_xor_sync(kEveryLane, own.sum, lane);
    own.Add(other);
  }
  __syncthreads();  // wait until the values of the previous call are read
  if (threadIdx.x % kWarp == 0) {
    maxima[threadIdx.x / kWarp] = own.maximum;
    sums[threadIdx.x / kWarp] = own.sum;
  }
  __syncthreads();
  Exponentials all;
  for (int warp = 0; warp < kThreads / kWarp; ++warp) {
    Exponentials other;
    other.maximum = maxima[warp];
    other.sum = sums[warp];
    all.Add(other);
  }
  return all;
}

// Calls f(values, first class) for the classes of a row that this thread takes: V at a time, the
// remaining ones one by one.
template <typename T, int V, typename F>
__device__ void ForClasses(const T* row, int64_t classes, F f) {
  const int64_t whole = classes / V * V;
  for (int64_t c = int64_t{threadIdx.x} * V; c < whole; c += kThreads * V) {
    float values[V];
    LoadFloats(values, row + c);
    f(values, c);
  }
  if constexpr (V > 1) {
    for (int64_t c = whole + threadIdx.x; c < classes; c += kThreads) {
      float value[1];
      LoadFloats(value, row + c);
      f(value, c);
    }
  }
}

int64_t RowLength(const CrossEntropyShape& shape) {
  return shape.row == 0 ? shape.logits.classes : shape.row;
}

// Whether rows of T at a distance of `row` elements can be read in whole vectors.
template <typename T>
bool TakesVectors(int64_t row) {
  return row % kVector<T> == 0;
}

template <typename T, int V>
__device__ Exponentials RowExponentials(const T* row, int64_t classes) {
  Exponentials own;
  ForClasses<T, V>(row, classes, [&](auto& values, int64_t) { own.Add(values); });
  return JoinBlock(own);
}

template <typename T, int V>
__global__ void SoftmaxRows(T* y, const T* x, int64_t rows, int64_t classes, bool is_log) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const Exponentials all = RowExponentials<T, V>(x + row * classes, classes);
    const float lse = all.LogSum(), scale = 1 / all.sum;
    ForClasses<T, V>(x + row * classes, classes, [&](auto& values, int64_t c) {
#pragma unroll
      for (float& value : values) {
        value = is_log ? value - lse : expf(value - all.maximum) * scale;
      }
      StoreFloats(y + row * classes + c, values);
    });
  }
}

template <typename T, int V>
__global__ void SoftmaxGradRows(T* dx, const T* dy, const T* y, int64_t rows, int64_t classes,
                                bool is_log) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t start = row * classes;
    float sum = 0;
    ForClasses<T, V>(dy + start, classes, [&]<int N>(float(&g)[N], int64_t c) {
      float values[N];
      LoadFloats(values, y + start + c);
#pragma unroll
      for (int i = 0; i < N; ++i) sum += is_log ? g[i] : g[i] * values[i];
    });
    sum = BlockSum(sum);
    ForClasses<T, V>(dy + start, classes, [&]<int N>(float(&g)[N], int64_t c) {
      float values[N];
      LoadFloats(values, y + start + c);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        g[i] = is_log ? g[i] - expf(values[i]) * sum : values[i] * (g[i] - sum);
      }
      StoreFloats(dx + start + c, g);
    });
  }
}

struct Targets {
  const int32_t* of_row;
  int32_t ignore_index;
  bool has_ignore_index;

  __device__ bool Counts(int64_t row) const {
    return !has_ignore_index || of_row[row] != ignore_index;
  }
};

Targets TargetsOf(const int32_t* target, const CrossEntropyShape& shape) {
  return {target, shape.ignore_index, shape.has_ignore_index};
}

__global__ void ComputeLossFactor(float* factor, float weight, const RunNumbers* numbers,
                                  int64_t rows, Targets targets, const int64_t* counted) {
  double of_batch = static_cast<double>(rows) / static_cast<double>(numbers->samples) *
                    static_cast<double>(numbers->batch);
  if (targets.has_ignore_index) {
    if (counted != nullptr && *counted >= 0) {
      of_batch = static_cast<double>(*counted);
    } else {
      float own = 0;  // exact up to 2^24 per thread
      for (int64_t row = threadIdx.x; row < rows; row += kThreads) own += targets.Counts(row);
      of_batch = static_cast<double>(BlockSum(own));
    }
  }
  if (threadIdx.x == 0) *factor = of_batch > 0 ? static_cast<float>(weight / of_batch) : 0;
}

// Sums over a row of logits, for every thread of the block.
struct RowSums {
  Exponentials exponentials;
  float logits = 0;  // of the logits themselves, if wanted
};

template <typename T, int V>
__device__ RowSums SumsOf(const T* row, int64_t classes, bool sums_logits) {
  RowSums own;
  ForClasses<T, V>(row, classes, [&](auto& values, int64_t) {
    own.exponentials.Add(values);
#pragma unroll
    for (float value : values) own.logits += value;
  });
  return {JoinBlock(own.exponentials), sums_logits ? BlockSum(own.logits) : 0};
}

template <typename T, int V>
__global__ void CrossEntropyRows(float* losses, float* lses, const T* logits, Targets targets,
                                 int64_t rows, int64_t classes, int64_t row_length, float smoothing,
                                 OutOfRange* out_of_range) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* own = logits + row * row_length;
    const RowSums sums = SumsOf<T, V>(own, classes, smoothing != 0);
    const float lse = sums.exponentials.LogSum();
    const float mean = sums.logits / static_cast<float>(classes);
    if (threadIdx.x != 0) continue;
    lses[row] = lse;
    losses[row] = 0;
    if (!targets.Counts(row)) continue;
    const int64_t target = targets.of_row[row];
    if (target < 0 || target >= classes) {
      Report(out_of_range, static_cast<int32_t>(target));
      continue;
    }
    losses[row] = smoothing == 0 ? lse - ToFloat(own[target])
                                 : lse - (1 - smoothing) * ToFloat(own[target]) - smoothing * mean;
  }
}

// The classes [first, first + n) of `whole` of rows that are `row_length` elements apart.
struct Classes {
  int64_t n;
  int64_t row_length;
  int64_t first;
  int64_t whole;
};

Classes ClassesOf(const CrossEntropyShape& shape) {
  return {shape.logits.classes, RowLength(shape), shape.first, shape.all_classes()};
}

template <typename T, int V>
__global__ void CrossEntropyParts(float* parts, const T* logits, Targets targets, int64_t rows,
                                  Classes classes, float smoothing, OutOfRange* out_of_range) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* own = logits + row * classes.row_length;
    const RowSums sums = SumsOf<T, V>(own, classes.n, smoothing != 0);
    if (threadIdx.x != 0) continue;
    const int64_t target = targets.of_row[row] - classes.first;
    float wanted = smoothing * sums.logits / static_cast<float>(classes.whole);
    if (target >= 0 && target < classes.n) wanted += (1 - smoothing) * ToFloat(own[target]);
    float* part = parts + row * kCrossEntropyParts;
    part[0] = sums.exponentials.maximum;
    part[1] = sums.exponentials.sum;
    part[2] = wanted;
    const bool is_class = targets.of_row[row] >= 0 && targets.of_row[row] < classes.whole;
    if (targets.Counts(row) && !is_class) Report(out_of_range, targets.of_row[row]);
  }
}

// A thread merges the parts of a row.
__global__ void MergeParts(float* losses, float* lses, const float* parts, int64_t ranks,
                           Targets targets, int64_t rows) {
  for (int64_t row = ThreadIndex(); row < rows; row += ThreadCount()) {
    Exponentials all;
    float wanted = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const float* part = parts + (rank * rows + row) * kCrossEntropyParts;
      Exponentials own;
      own.maximum = part[0];
      own.sum = part[1];
      all.Add(own);
      wanted += part[2];
    }
    lses[row] = all.LogSum();
    losses[row] = targets.Counts(row) ? lses[row] - wanted : 0;
  }
}

// *y = *factor (null: 1) * the sum of n numbers. Runs in one block.
__global__ void SumAll(float* y, const float* x, const float* factor, int64_t n) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += x[i];
  sum = BlockSum(sum);
  if (threadIdx.x == 0) *y = factor == nullptr ? sum : *factor * sum;
}

template <typename T, int V>
__global__ void CrossEntropyGradRows(T* dlogits, const T* logits, Targets targets, const float* lse,
                                     const float* loss_factor, const RunNumbers* numbers,
                                     int64_t rows, Classes classes, float smoothing) {
  const float share = smoothing / static_cast<float>(classes.whole);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float factor = targets.Counts(row) ? *loss_factor * numbers->loss_scale : 0;
    const int64_t target = targets.of_row[row] - classes.first;
    const float of_row = lse[row];
    const T* from = logits + row * classes.row_length;
    T* to = dlogits + row * classes.row_length;
    ForClasses<T, V>(from, classes.n, [&]<int N>(float(&values)[N], int64_t c) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float wanted = (c + i == target ? 1 - smoothing : 0) + share;
        values[i] = factor == 0 ? 0 : factor * (expf(values[i] - of_row) - wanted);
      }
      StoreFloats(to + c, values);
    });
    for (int64_t c = classes.n + threadIdx.x; c < classes.row_length; c += kThreads) {
      to[c] = FromFloat<T>(0);
    }
  }
}

// right[row] = 1 if the first largest logit is the target's. NaN never is.
template <typename T>
__global__ void CompareRows(float* right, const T* logits, Targets targets, int64_t rows,
                            int64_t classes, int64_t row_length) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* own = logits + row * row_length;
    const int64_t target = targets.of_row[row];
    const bool is_in_range = target >= 0 && target < classes;
    const float wanted = is_in_range ? ToFloat(own[target]) : NAN;
    float better = isnan(wanted) ? 1 : 0;  // number of logits ranked before the target's
    for (int64_t c = threadIdx.x; c < classes; c += kThreads) {
      const float value = ToFloat(own[c]);
      better += value > wanted || (value == wanted && c < target);
    }
    better = BlockSum(better);
    if (threadIdx.x == 0) right[row] = better == 0 && targets.Counts(row) ? 1 : 0;
  }
}

struct SigmoidCrossEntropyOf {
  __device__ float Loss(float x, float target) const {
    return fmaxf(x, 0) - x * target + log1pf(expf(-fabsf(x)));
  }
  __device__ float Slope(float x, float target) const { return 1 / (1 + expf(-x)) - target; }
};

struct SquaredErrorOf {
  __device__ float Loss(float x, float target) const { return (x - target) * (x - target); }
  __device__ float Slope(float x, float target) const { return 2 * (x - target); }
};

template <typename T, typename F>
__global__ void SumLosses(float* parts, const T* x, const float* target, int64_t n, F f) {
  float sum = 0;
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount())
    sum += f.Loss(ToFloat(x[i]), target[i]);
  sum = BlockSum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

template <typename T, typename F>
__global__ void GradLosses(T* dx, const T* x, const float* target, const float* loss_factor,
                           const RunNumbers* numbers, int64_t n, F f) {
  const float factor = *loss_factor * numbers->loss_scale;
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    dx[i] = FromFloat<T>(factor * f.Slope(ToFloat(x[i]), target[i]));
  }
}

template <typename F>
cudaError_t ForLoss(ElementLoss kind, F f) {
  return kind == ElementLoss::kSquaredError ? f(SquaredErrorOf()) : f(SigmoidCrossEntropyOf());
}

}  // namespace

cudaError_t Softmax(SoftmaxKind kind, void* y, const void* x, const SoftmaxShape& shape,
                    cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    const auto kernel =
        shape.classes % kVector<T> == 0 ? SoftmaxRows<T, kVector<T>> : SoftmaxRows<T, 1>;
    return Launch(kernel, Rows(shape.rows), kThreads, 0, stream, static_cast<T*>(y),
                  static_cast<const T*>(x), shape.rows, shape.classes, kind == SoftmaxKind::kLog);
  });
}

cudaError_t SoftmaxGrad(SoftmaxKind kind, void* dx, const void* dy, const void* y,
                        const SoftmaxShape& shape, cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    const auto kernel =
        shape.classes % kVector<T> == 0 ? SoftmaxGradRows<T, kVector<T>> : SoftmaxGradRows<T, 1>;
    return Launch(kernel, Rows(shape.rows), kThreads, 0, stream, static_cast<T*>(dx),
                  static_cast<const T*>(dy), static_cast<const T*>(y), shape.rows, shape.classes,
                  kind == SoftmaxKind::kLog);
  });
}

cudaError_t LossFactor(float* factor, float weight, const RunNumbers* numbers, int64_t rows,
                       const int32_t* target, const CrossEntropyShape* shape,
                       const int64_t* counted, cudaStream_t stream) {
  const Targets targets = shape == nullptr ? Targets{} : TargetsOf(target, *shape);
  return Launch(ComputeLossFactor, 1, kThreads, 0, stream, factor, weight, numbers, rows, targets,
                counted);
}

cudaError_t SoftmaxCrossEntropy(float* loss, float* lse, const void* logits, const int32_t* target,
                                const float* factor, const CrossEntropyShape& shape,
                                float* workspace, OutOfRange* out_of_range, cudaStream_t stream) {
  const auto [rows, classes, type] = shape.logits;
  const cudaError_t error = ForFloating(type, [&, rows = rows, classes = classes](auto one) {
    using T = decltype(one);
    const int64_t row = RowLength(shape);
    const auto kernel =
        TakesVectors<T>(row) ? CrossEntropyRows<T, kVector<T>> : CrossEntropyRows<T, 1>;
    return Launch(kernel, Rows(rows), kThreads, 0, stream, workspace, lse,
                  static_cast<const T*>(logits), TargetsOf(target, shape), rows, classes, row,
                  shape.label_smoothing, out_of_range);
  });
  MUSTER_RETURN_IF_CUDA_ERROR(error);
  return Launch(SumAll, 1, kThreads, 0, stream, loss, workspace, factor, rows);
}

cudaError_t SoftmaxCrossEntropyParts(float* parts, const void* logits, const int32_t* target,
                                     const CrossEntropyShape& shape, OutOfRange* out_of_range,
                                     cudaStream_t stream) {
  return ForFloating(shape.logits.type, [&](auto one) {
    using T = decltype(one);
    const auto kernel = TakesVectors<T>(RowLength(shape)) ? CrossEntropyParts<T, kVector<T>>
                                                          : CrossEntropyParts<T, 1>;
    return Launch(kernel, Rows(shape.logits.rows), kThreads, 0, stream, parts,
                  static_cast<const T*>(logits), TargetsOf(target, shape), shape.logits.rows,
                  ClassesOf(shape), shape.label_smoothing, out_of_range);
  });
}

cudaError_t MergeSoftmaxCrossEntropy(float* loss, float* lse, const float* parts, int64_t ranks,
                                     const int32_t* target, const float* factor,
                                     const CrossEntropyShape& shape, float* workspace,
                                     cudaStream_t stream) {
  const int64_t rows = shape.logits.rows;
  MUSTER_RETURN_IF_CUDA_ERROR(Launch(MergeParts, Strided(rows), kThreads, 0, stream, workspace, lse,
                                     parts, ranks, TargetsOf(target, shape), rows));
  return Launch(SumAll, 1, kThreads, 0, stream, loss, workspace, factor, rows);
}

cudaError_t SoftmaxCrossEntropyGrad(void* dlogits, const void* logits, const int32_t* target,
                                    const float* lse, const float* factor,
                                    const RunNumbers* numbers, const CrossEntropyShape& shape,
                                    cudaStream_t stream) {
  return ForFloating(shape.logits.type, [&](auto one) {
    using T = decltype(one);
    const auto kernel = TakesVectors<T>(RowLength(shape)) ? CrossEntropyGradRows<T, kVector<T>>
                                                          : CrossEntropyGradRows<T, 1>;
    return Launch(kernel, Rows(shape.logits.rows), kThreads, 0, stream, static_cast<T*>(dlogits),
                  static_cast<const T*>(logits), TargetsOf(target, shape), lse, factor, numbers,
                  shape.logits.rows, ClassesOf(shape), shape.label_smoothing);
  });
}

cudaError_t CorrectCount(float* count, const void* logits, const int32_t* target,
                         const CrossEntropyShape& shape, float* workspace, cudaStream_t stream) {
  const auto [rows, classes, type] = shape.logits;
  const cudaError_t error = ForFloating(type, [&, rows = rows, classes = classes](auto one) {
    using T = decltype(one);
    return Launch(CompareRows<T>, Rows(rows), kThreads, 0, stream, workspace,
                  static_cast<const T*>(logits), TargetsOf(target, shape), rows, classes,
                  RowLength(shape));
  });
  MUSTER_RETURN_IF_CUDA_ERROR(error);
  return Launch(SumAll, 1, kThreads, 0, stream, count, workspace, nullptr, rows);
}

cudaError_t SumElementLoss(ElementLoss kind, float* loss, const void* x, Type type,
                           const float* target, const float* factor, int64_t n, float* workspace,
                           cudaStream_t stream) {
  const int64_t blocks = std::clamp<int64_t>(CeilDiv(n, kThreads), 1, kLossParts);
  const cudaError_t error = ForLoss(kind, [&](auto f) {
    return ForFloating(type, [&](auto one) {
      using T = decltype(one);
      return Launch(SumLosses<T, decltype(f)>, dim3(static_cast<unsigned>(blocks)), kThreads, 0,
                    stream, workspace, static_cast<const T*>(x), target, n, f);
    });
  });
  MUSTER_RETURN_IF_CUDA_ERROR(error);
  return Launch(SumAll, 1, kThreads, 0, stream, loss, workspace, factor, blocks);
}

cudaError_t ElementLossGrad(ElementLoss kind, void* dx, const void* x, Type type,
                            const float* target, const float* factor, const RunNumbers* numbers,
                            int64_t n, cudaStream_t stream) {
  return ForLoss(kind, [&](auto f) {
    return ForFloating(type, [&](auto one) {
      using T = decltype(one);
      return Launch(GradLosses<T, decltype(f)>, Strided(n), kThreads, 0, stream,
                    static_cast<T*>(dx), static_cast<const T*>(x), target, factor, numbers, n, f);
    });
  });
}

}  // namespace muster::kernels::cuda
