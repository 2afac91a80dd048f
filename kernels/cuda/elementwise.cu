#include <type_traits>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {
namespace {

constexpr int kOperands = 3;

// The dimensions of y, innermost first, and each operand's stride in each of them.
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
struct Minimum {
  template <typename C>
  __device__ C operator()(C a, C b, C) const {
    return a < b || a != a ? a : b;
  }
};
struct Maximum {
  template <typename C>
  __device__ C operator()(C a, C b, C) const {
    return a > b || a != a ? a : b;
  }
};
struct Mod {
  __device__ float operator()(float a, float b, float) const {
    const float rest = fmodf(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
};
struct Equal {
  template <typename C>
  __device__ bool operator()(C a, C b, C) const {
    return a == b;
  }
};
struct Less {
  template <typename C>
  __device__ bool operator()(C a, C b, C) const {
    return a < b;
  }
};
struct LessOrEqual {
  template <typename C>
  __device__ bool operator()(C a, C b, C) const {
    return a <= b;
  }
};
struct Where {
  template <typename C>
  __device__ C operator()(C condition, C a, C b) const {
    return condition != 0 ? a : b;
  }
};

// Integers use unsigned arithmetic, because it wraps.
struct AddIntegers {
  __device__ int32_t operator()(int32_t a, int32_t b, int32_t) const {
    return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  }
};
struct SubIntegers {
  __device__ int32_t operator()(int32_t a, int32_t b, int32_t) const {
    return static_cast<int32_t>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b));
  }
};
struct MulIntegers {
  __device__ int32_t operator()(int32_t a, int32_t b, int32_t) const {
    return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
  }
};
struct DivIntegers {
  __device__ int32_t operator()(int32_t a, int32_t b, int32_t) const {
    return b == 0 ? 0 : b == -1 ? SubIntegers()(0, a, 0) : a / b;
  }
};
struct ModIntegers {
  __device__ int32_t operator()(int32_t a, int32_t b, int32_t) const {
    const int32_t rest = b == 0 || b == -1 ? 0 : a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
};

struct DivGradB {
  __device__ float operator()(float dy, float a, float b) const { return -dy * a / (b * b); }
};
struct MinimumGrad {
  __device__ float operator()(float dy, float a, float b) const {
    return a > b ? 0 : a == b ? 0.5f * dy : dy;
  }
};
struct MaximumGrad {
  __device__ float operator()(float dy, float a, float b) const {
    return a < b ? 0 : a == b ? 0.5f * dy : dy;
  }
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

template <typename T>
__device__ void Assign(float& to, T from) {
  to = ToFloat(from);
}
__device__ inline void Assign(int32_t& to, int32_t from) { to = from; }

// Loads V elements of the innermost dimension, converted to C: contiguous ones, or one that
// repeats.
template <int V, typename C, typename T>
__device__ void LoadOperand(C (&to)[V], const T* from, bool repeats) {
  if (from == nullptr) return;
  Vector<T, V> loaded;
  if (repeats) {
#pragma unroll
    for (T& lane : loaded.lanes) lane = *from;
  } else {
    loaded = *reinterpret_cast<const Vector<T, V>*>(from);
  }
#pragma unroll
  for (int i = 0; i < V; ++i) Assign(to[i], loaded.lanes[i]);
}

// Stores V results of type R, from operands of type T, at element `at` of y.
template <typename T, int V, typename R>
__device__ void StoreResults(void* y, bool y_is_f32, int64_t at, const R (&results)[V]) {
  if constexpr (!std::is_same_v<R, float>) {  // i32, or a comparison's
    Vector<int32_t, V> stored;
#pragma unroll
    for (int i = 0; i < V; ++i) stored.lanes[i] = results[i];
    *reinterpret_cast<Vector<int32_t, V>*>(static_cast<int32_t*>(y) + at) = stored;
  } else if (y_is_f32) {
    StoreFloats(static_cast<float*>(y) + at, results);
  } else {
    StoreFloats(static_cast<T*>(y) + at, results);
  }
}

// y = f(a, b, c). A is the type of the first operand, T that of the others. Integers are computed
// as integers. Indices are computed once per V elements.
template <int V, typename A, typename T, typename F>
__global__ void CombineAll(void* y, bool y_is_f32, const A* a, const T* b, const T* c, Walk walk,
                           int64_t vectors, F f) {
  using C = std::conditional_t<std::is_same_v<T, int32_t>, int32_t, float>;
  using R = decltype(f(C(), C(), C()));
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
    C of_a[V], of_b[V] = {}, of_c[V] = {};
    LoadOperand(of_a, a + offsets[0], walk.strides[0][0] == 0);
    LoadOperand(of_b, b + offsets[1], walk.strides[0][1] == 0);
    LoadOperand(of_c, c == nullptr ? c : c + offsets[2], walk.strides[0][2] == 0);
    R results[V];
#pragma unroll
    for (int i = 0; i < V; ++i) results[i] = f(of_a[i], of_b[i], of_c[i]);
    StoreResults<T>(y, y_is_f32, v * V, results);
  }
}

// Merges neighbouring dimensions that every operand walks with one stride, such as contiguous ones
// and ones in which it repeats. Drops dimensions of size 1.
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

cudaError_t CombineIntegers(Combination f, void* y, const void* const* data, const Walk& walk,
                            cudaStream_t stream) {
  const auto launch = [&](auto function) {
    return LaunchCombine<int32_t, int32_t>(y, /*y_is_f32=*/false, data, walk, stream, function);
  };
  switch (f) {
    case Combination::kAdd:
      return launch(AddIntegers());
    case Combination::kSub:
      return launch(SubIntegers());
    case Combination::kMul:
      return launch(MulIntegers());
    case Combination::kDiv:
      return launch(DivIntegers());
    case Combination::kMinimum:
      return launch(Minimum());
    case Combination::kMaximum:
      return launch(Maximum());
    case Combination::kMod:
      return launch(ModIntegers());
    case Combination::kEqual:
      return launch(Equal());
    case Combination::kLess:
      return launch(Less());
    case Combination::kLessOrEqual:
      return launch(LessOrEqual());
    case Combination::kWhere:
      return launch(Where());
    default:
      return cudaErrorInvalidValue;
  }
}

bool IsComparison(Combination f) {
  return f == Combination::kEqual || f == Combination::kLess || f == Combination::kLessOrEqual;
}

}  // namespace

cudaError_t Combine(Combination f, void* y, Type y_type,
                    const std::vector<BroadcastOperand>& operands, Type type, cudaStream_t stream) {
  if (operands.size() < 2 || operands.size() > kOperands) return cudaErrorInvalidValue;
  const Type own = IsComparison(f) ? Type::kI32 : type;
  if (y_type != own && (y_type != Type::kF32 || own == Type::kI32)) return cudaErrorInvalidValue;
  Walk walk;
  MUSTER_RETURN_IF_CUDA_ERROR(MakeWalk(operands, walk));
  const void* data[kOperands] = {};
  for (size_t k = 0; k < operands.size(); ++k) data[k] = operands[k].data;
  if (type == Type::kI32) return CombineIntegers(f, y, data, walk, stream);
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
      case Combination::kMinimum:
        return launch(Minimum());
      case Combination::kMaximum:
        return launch(Maximum());
      case Combination::kMod:
        return launch(Mod());
      case Combination::kEqual:
        return launch(Equal());
      case Combination::kLess:
        return launch(Less());
      case Combination::kLessOrEqual:
        return launch(LessOrEqual());
      case Combination::kWhere:
        return launch_condition(Where());
      case Combination::kDivGradB:
        return launch(DivGradB());
      case Combination::kMinimumGrad:
        return launch(MinimumGrad());
      case Combination::kMaximumGrad:
        return launch(MaximumGrad());
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
