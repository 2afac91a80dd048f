#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduction.h"

namespace muster::kernels::cuda {
namespace {

constexpr int kDimensionsMax = 12;
constexpr int64_t kPartsMax = 1024;

// Some dimensions of x, innermost first.
struct Axes {
  int count = 0;
  int64_t sizes[kDimensionsMax];
  int64_t strides[kDimensionsMax];

  void Add(int64_t size, int64_t stride) {
    if (size == 1) return;
    if (count > 0 && strides[count - 1] * sizes[count - 1] == stride) {
      sizes[count - 1] *= size;
      return;
    }
    sizes[count] = size;
    strides[count++] = stride;
  }
};

// The offset of element `index` of the axes. A single axis needs no division.
__device__ int64_t Offset(const Axes& axes, int64_t index) {
  int64_t offset = 0;
  for (int d = 0; d < axes.count; ++d) {
    if (d + 1 == axes.count) return offset + index * axes.strides[d];
    const int64_t next = index / axes.sizes[d];
    offset += (index - next * axes.sizes[d]) * axes.strides[d];
    index = next;
  }
  return offset;
}

struct Problem {
  Axes kept;
  Axes reduced;
  int64_t outputs;
  int64_t reductions;
  bool inner_is_kept;     // if so, neighbouring outputs are neighbours in memory
  int64_t parts;          // parts of the reduction, with a partial result each
  int64_t part_elements;  // the last part may have fewer
};

Problem Plan(const ReductionShape& shape) {
  Problem problem = {};
  problem.outputs = shape.outputs();
  problem.reductions = shape.reductions();
  int64_t stride = 1;
  bool is_innermost = true;
  for (size_t d = shape.sizes.size(); d-- > 0;) {
    if (shape.sizes[d] > 1 && is_innermost) {
      problem.inner_is_kept = !shape.reduced[d];
      is_innermost = false;
    }
    (shape.reduced[d] ? problem.reduced : problem.kept).Add(shape.sizes[d], stride);
    stride *= shape.sizes[d];
  }
  // Cut the reduction into so many parts that the blocks fill the device, each with enough work.
  const int64_t blocks = problem.inner_is_kept ? CeilDiv(problem.outputs, kWarp) : problem.outputs;
  const int64_t worthwhile = problem.inner_is_kept ? 64 : 4096;
  problem.parts = std::clamp<int64_t>(CeilDiv(problem.reductions, worthwhile), 1,
                                      std::clamp<int64_t>(CeilDiv(1024, blocks), 1, kPartsMax));
  problem.part_elements = CeilDiv(problem.reductions, problem.parts);
  problem.parts = CeilDiv(problem.reductions, problem.part_elements);
  return problem;
}

struct SumOf {
  static constexpr float kStart = 0;
  __device__ float Map(float x, int64_t) const { return x; }
  __device__ static float Join(float a, float b) { return a + b; }
};

struct MaximumOf {
  static constexpr float kStart = -INFINITY;
  __device__ float Map(float x, int64_t) const { return x; }
  __device__ static float Join(float a, float b) { return Max(a, b); }
};

// Counts the elements equal to the output.
template <typename T>
struct CountEqual {
  static constexpr float kStart = 0;
  const T* y;
  __device__ float Map(float x, int64_t output) const { return x == ToFloat(y[output]) ? 1 : 0; }
  __device__ static float Join(float a, float b) { return a + b; }
};

template <typename R>
__device__ float WarpJoin(float x) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) {
    x = R::Join(x, __shfl_xor_sync(kEveryLane, x, lane));
  }
  return x;
}

// A block per output and part; its threads stride over the part.
template <typename T, typename R>
__global__ void ReduceInner(float* partial, const T* x, Problem problem, R reduction) {
  __shared__ float of_warps[kThreads / kWarp];
  const int64_t first = blockIdx.y * problem.part_elements;
  const int64_t last = min(first + problem.part_elements, problem.reductions);
  for (int64_t o = blockIdx.x; o < problem.outputs; o += gridDim.x) {
    const T* row = x + Offset(problem.kept, o);
    float value = R::kStart;
    for (int64_t r = first + threadIdx.x; r < last; r += kThreads) {
      value = R::Join(value, reduction.Map(ToFloat(row[Offset(problem.reduced, r)]), o));
    }
    value = WarpJoin<R>(value);
    __syncthreads();
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int warp = 1; warp < kThreads / kWarp; ++warp) value = R::Join(value, of_warps[warp]);
      partial[blockIdx.y * problem.outputs + o] = value;
    }
  }
}

// A block of 32 x 8 threads per 32 outputs and part: neighbouring threads read neighbours.
template <typename T, typename R>
__global__ void ReduceOuter(float* partial, const T* x, Problem problem, R reduction) {
  constexpr int kRows = kThreads / kWarp;
  __shared__ float of_rows[kRows][kWarp];
  const int64_t first = blockIdx.y * problem.part_elements;
  const int64_t last = min(first + problem.part_elements, problem.reductions);
  for (int64_t start = int64_t{blockIdx.x} * kWarp; start < problem.outputs;
       start += int64_t{gridDim.x} * kWarp) {
    const int64_t o = start + threadIdx.x;
    float value = R::kStart;
    if (o < problem.outputs) {
      const T* column = x + Offset(problem.kept, o);
      for (int64_t r = first + threadIdx.y; r < last; r += kRows) {
        value = R::Join(value, reduction.Map(ToFloat(column[Offset(problem.reduced, r)]), o));
      }
    }
    __syncthreads();
    of_rows[threadIdx.y][threadIdx.x] = value;
    __syncthreads();
    if (threadIdx.y == 0 && o < problem.outputs) {
      for (int row = 1; row < kRows; ++row) value = R::Join(value, of_rows[row][threadIdx.x]);
      partial[blockIdx.y * problem.outputs + o] = value;
    }
  }
}

template <typename R, typename To>
__global__ void JoinParts(To* y, const float* partial, int64_t outputs, int64_t parts,
                          float factor) {
  for (int64_t o = ThreadIndex(); o < outputs; o += ThreadCount()) {
    float value = R::kStart;
    // One thread joins the parts in their order; many loads are in flight meanwhile.
#pragma unroll 16
    for (int64_t part = 0; part < parts; ++part) {
      value = R::Join(value, partial[part * outputs + o]);
    }
    y[o] = FromFloat<To>(factor * value);
  }
}

template <typename To, typename T, typename R>
cudaError_t Reduce(To* y, const T* x, float factor, const Problem& problem, R reduction,
                   void* workspace, cudaStream_t stream) {
  auto* partial = static_cast<float*>(workspace);
  const auto parts = static_cast<unsigned>(problem.parts);
  if (problem.inner_is_kept) {
    const auto blocks =
        static_cast<unsigned>(std::min(CeilDiv(problem.outputs, kWarp), kBlocksMax));
    MUSTER_RETURN_IF_CUDA_ERROR(Launch(ReduceOuter<T, R>, dim3(blocks, parts),
                                       dim3(kWarp, kThreads / kWarp), 0, stream, partial, x,
                                       problem, reduction));
  } else {
    const auto blocks = static_cast<unsigned>(std::min(problem.outputs, kBlocksMax));
    MUSTER_RETURN_IF_CUDA_ERROR(Launch(ReduceInner<T, R>, dim3(blocks, parts), kThreads, 0, stream,
                                       partial, x, problem, reduction));
  }
  return Launch(JoinParts<R, To>, Strided(problem.outputs), kThreads, 0, stream, y, partial,
                problem.outputs, problem.parts, factor);
}

// The strides of y by dimension of x: where the output of an element of x is.
Axes OutputStrides(const ReductionShape& shape) {
  Axes axes;
  int64_t stride = 1;
  for (size_t d = shape.sizes.size(); d-- > 0;) {
    if (shape.sizes[d] == 1) continue;
    const int64_t own = shape.reduced[d] ? 0 : stride;
    if (!shape.reduced[d]) stride *= shape.sizes[d];
    // Merges reduced dimensions with each other as well: a stride of 0 continues a stride of 0.
    const int last = axes.count - 1;
    if (axes.count > 0 && axes.strides[last] * axes.sizes[last] == own &&
        (own != 0) == (axes.strides[last] != 0)) {
      axes.sizes[last] *= shape.sizes[d];
    } else {
      axes.sizes[axes.count] = shape.sizes[d];
      axes.strides[axes.count++] = own;
    }
  }
  return axes;
}

template <typename T>
__global__ void SpreadAll(T* dx, const T* dy, float factor, Axes outputs, int64_t n) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    dx[i] = FromFloat<T>(factor * ToFloat(dy[Offset(outputs, i)]));
  }
}

template <typename T>
__global__ void SpreadToMaxima(T* dx, const T* dy, const T* x, const T* y, const float* counts,
                               Axes outputs, int64_t n) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    const int64_t o = Offset(outputs, i);
    const bool is_maximum = ToFloat(x[i]) == ToFloat(y[o]);
    dx[i] = FromFloat<T>(is_maximum ? ToFloat(dy[o]) / counts[o] : 0);
  }
}

}  // namespace

int64_t ReductionShape::outputs() const {
  int64_t n = 1;
  for (size_t d = 0; d < sizes.size(); ++d) n *= reduced[d] ? 1 : sizes[d];
  return n;
}

int64_t ReductionShape::reductions() const {
  int64_t n = 1;
  for (size_t d = 0; d < sizes.size(); ++d) n *= reduced[d] ? sizes[d] : 1;
  return n;
}

int64_t ReductionWorkspaceBytes(const ReductionShape& shape) {
  const Problem problem = Plan(shape);
  return problem.parts * problem.outputs * static_cast<int64_t>(sizeof(float));
}

cudaError_t Sum(void* y, Type y_type, const void* x, Type x_type, float factor,
                const ReductionShape& shape, void* workspace, cudaStream_t stream) {
  const Problem problem = Plan(shape);
  return ForFloating(x_type, [&](auto x_one) {
    using T = decltype(x_one);
    const auto* from = static_cast<const T*>(x);
    if (y_type == Type::kF32) {
      return Reduce(static_cast<float*>(y), from, factor, problem, SumOf(), workspace, stream);
    }
    return ForFloating(y_type, [&](auto y_one) {
      return Reduce(static_cast<decltype(y_one)*>(y), from, factor, problem, SumOf(), workspace,
                    stream);
    });
  });
}

cudaError_t Maximum(void* y, const void* x, Type type, const ReductionShape& shape, void* workspace,
                    cudaStream_t stream) {
  const Problem problem = Plan(shape);
  return ForFloating(type, [&](auto one) {
    using T = decltype(one);
    return Reduce(static_cast<T*>(y), static_cast<const T*>(x), 1, problem, MaximumOf(), workspace,
                  stream);
  });
}

cudaError_t MaximumGrad(void* dx, const void* dy, const void* x, const void* y, Type type,
                        const ReductionShape& shape, void* workspace, cudaStream_t stream) {
  const Problem problem = Plan(shape);
  auto* counts = static_cast<float*>(workspace) + problem.parts * problem.outputs;
  const int64_t n = problem.outputs * problem.reductions;
  return ForFloating(type, [&](auto one) {
    using T = decltype(one);
    const auto* of_x = static_cast<const T*>(x);
    const auto* of_y = static_cast<const T*>(y);
    MUSTER_RETURN_IF_CUDA_ERROR(
        Reduce(counts, of_x, 1, problem, CountEqual<T>{of_y}, workspace, stream));
    return Launch(SpreadToMaxima<T>, Strided(n), kThreads, 0, stream, static_cast<T*>(dx),
                  static_cast<const T*>(dy), of_x, of_y, counts, OutputStrides(shape), n);
  });
}

cudaError_t Spread(void* dx, const void* dy, Type type, float factor, const ReductionShape& shape,
                   cudaStream_t stream) {
  const int64_t n = shape.outputs() * shape.reductions();
  return ForFloating(type, [&](auto one) {
    using T = decltype(one);
    return Launch(SpreadAll<T>, Strided(n), kThreads, 0, stream, static_cast<T*>(dx),
                  static_cast<const T*>(dy), factor, OutputStrides(shape), n);
  });
}

}  // namespace muster::kernels::cuda
