#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {
namespace {

constexpr int kOperands = 3;

// The dimensions of y from the innermost on, and how far one step in each moves every operand.
struct Walk {
  int dimensions;
  int64_t sizes[kDimensionsMax];
  int64_t strides[kDimensionsMax][kOperands];
};

struct Add {
  __device__ float operator()(float a, float b, float) const { return a + b; }
};
struct Sub {
  __device__ float operator()(float a, float b, float) const { return a - b; }
};
struct Mul {
  __device__ float operator()(float a, float b, float) const { return a * b; }
};
struct Div {
  __device__ float operator()(float a, float b, float) const { return a / b; }
};
struct Pow {
  __device__ float operator()(float a, float b, float) const { return powf(a, b); }
};
struct Where {
  __device__ float operator()(float condition, float a, float b) const {
    return condition != 0 ? a : b;
  }
};
struct DivGradB {
  __device__ float operator()(float dy, float a, float b) const { return -dy * a / (b * b); }
};
struct PowGradA {
  __device__ float operator()(float dy, float a, float b) const {
    return b == 0 ? 0 : dy * b * powf(a, b - 1);
  }
};
struct PowGradB {
  __device__ float operator()(float dy, float a, float b) const {
    return a == 0 && b >= 0 ? 0 : dy * powf(a, b) * logf(a);
  }
};
struct WhereGradA {
  __device__ float operator()(float condition, float dy, float) const {
    return condition != 0 ? dy : 0;
  }
};
struct WhereGradB {
  __device__ float operator()(float condition, float dy, float) const {
    return condition != 0 ? 0 : dy;
  }
};

// V elements of the innermost dimension: in a row, or one that repeats.
template <int V, typename T>
__device__ void LoadOperand(float (&to)[V], const T* from, bool repeats) {
  if (from == nullptr) return;
  if (!repeats) return LoadFloats(to, from);
#pragma unroll
  for (float& value : to) value = ToFloat(*from);
}

// A is the type of the first operand, T of the others. Index arithmetic once for V elements.
template <int V, typename A, typename T, typename F>
__global__ void CombineAll(void* y, bool y_is_f32, const A* a, const T* b, const T* c, Walk walk,
                           int64_t vectors, F f) {
  for (int64_t v = ThreadIndex(); v < vectors; v += ThreadCount()) {
    int64_t rest = v, offsets[kOperands] = {};
    for (int d = 0; d < walk.dimensions; ++d) {
      const int64_t size = d == 0 ? walk.sizes[0] / V : walk.sizes[d];
      const int64_t next = d + 1 == walk.dimensions ? 0 : rest / size;
      const int64_t index = (rest - next * size) * (d == 0 ? V : 1);
      rest = next;
#pragma unroll
      for (int k = 0; k < kOperands; ++k) offsets[k] += index * walk.strides[d][k];
    }
    float of_a[V], of_b[V] = {}, of_c[V] = {};
    LoadOperand(of_a, a + offsets[0], walk.strides[0][0] == 0);
    LoadOperand(of_b, b + offsets[1], walk.strides[0][1] == 0);
    LoadOperand(of_c, c == nullptr ? c : c + offsets[2], walk.strides[0][2] == 0);
#pragma unroll
    for (int i = 0; i < V; ++i) of_a[i] = f(of_a[i], of_b[i], of_c[i]);
    if (y_is_f32) {
      StoreFloats(static_cast<float*>(y) + v * V, of_a);
    } else {
      StoreFloats(static_cast<T*>(y) + v * V, of_a);
    }
  }
}

// Dimensions through which every operand runs alike become one; those of size 1 go.
cudaError_t MakeWalk(const std::vector<BroadcastOperand>& operands, Walk& walk) {
  size_t rank = 0;
  for (const BroadcastOperand& operand : operands) rank = std::max(rank, operand.shape.size());
  walk = {};
  int64_t strides[kOperands] = {1, 1, 1};
  for (size_t d = 0; d < rank; ++d) {  // from the last
    int64_t size = 1, steps[kOperands] = {};
    for (size_t k = 0; k < operands.size(); ++k) {
      const std::vector<int64_t>& shape = operands[k].shape;
      const int64_t own = d < shape.size() ? shape[shape.size() - 1 - d] : 1;
      steps[k] = own == 1 ? 0 : strides[k];
      strides[k] *= own;
      size = std::max(size, own);
    }
    if (size == 1) continue;
    bool merges = walk.dimensions > 0;
    const int last = walk.dimensions - 1;
    for (int k = 0; k < kOperands && merges; ++k) {
      merges = steps[k] == walk.strides[last][k] * walk.sizes[last];
    }
    if (merges) {
      walk.sizes[last] *= size;
      continue;
    }
    if (walk.dimensions == kDimensionsMax) return cudaErrorInvalidValue;
    walk.sizes[walk.dimensions] = size;
    std::copy_n(steps, kOperands, walk.strides[walk.dimensions]);
    ++walk.dimensions;
  }
  if (walk.dimensions == 0) walk = {.dimensions = 1, .sizes = {1}, .strides = {}};
  return cudaSuccess;
}

template <typename A, typename T, typename F>
cudaError_t LaunchCombine(void* y, bool y_is_f32, const void* const* data, const Walk& walk,
                          cudaStream_t stream, F f) {
  int64_t n = 1;
  for (int d = 0; d < walk.dimensions; ++d) n *= walk.sizes[d];
  const auto* a = static_cast<const A*>(data[0]);
  const auto* b = static_cast<const T*>(data[1]);
  const auto* c = static_cast<const T*>(data[2]);
  constexpr int V = 4;  // 16 bytes of f32, 8 of bf16
  if (walk.sizes[0] % V == 0) {
    return Launch(CombineAll<V, A, T, F>, Strided(n / V), kThreads, 0, stream, y, y_is_f32, a, b, c,
                  walk, n / V, f);
  }
  return Launch(CombineAll<1, A, T, F>, Strided(n), kThreads, 0, stream, y, y_is_f32, a, b, c, walk,
                n, f);
}

}  // namespace

cudaError_t Combine(Combination f, void* y, Type y_type,
                    const std::vector<BroadcastOperand>& operands, Type type, cudaStream_t stream) {
  if (operands.size() < 2 || operands.size() > kOperands) return cudaErrorInvalidValue;
  if (y_type != type && y_type != Type::kF32) return cudaErrorInvalidValue;
  Walk walk;
  MUSTER_RETURN_IF_CUDA_ERROR(MakeWalk(operands, walk));
  const void* data[kOperands] = {};
  for (size_t k = 0; k < operands.size(); ++k) data[k] = operands[k].data;
  return ForFloating(type, [&](auto one) {
    using T = decltype(one);
    const auto launch = [&](auto function) {
      return LaunchCombine<T, T>(y, y_type == Type::kF32, data, walk, stream, function);
    };
    const auto launch_condition = [&](auto function) {
      return LaunchCombine<int32_t, T>(y, y_type == Type::kF32, data, walk, stream, function);
    };
    switch (f) {
      case Combination::kAdd:
        return launch(Add());
      case Combination::kSub:
        return launch(Sub());
      case Combination::kMul:
        return launch(Mul());
      case Combination::kDiv:
        return launch(Div());
      case Combination::kPow:
        return launch(Pow());
      case Combination::kWhere:
        return launch_condition(Where());
      case Combination::kDivGradB:
        return launch(DivGradB());
      case Combination::kPowGradA:
        return launch(PowGradA());
      case Combination::kPowGradB:
        return launch(PowGradB());
      case Combination::kWhereGradA:
        return launch_condition(WhereGradA());
      case Combination::kWhereGradB:
        return launch_condition(WhereGradB());
    }
    return cudaErrorInvalidValue;
  });
}

}  // namespace muster::kernels::cuda
