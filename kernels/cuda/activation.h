// Functions of one variable and their derivatives, CUDA twins of kernels/activation.h and more.
//
// Tensors are on the device, 16-byte aligned, of n elements of `type`, a floating one; an output
// may be one of the inputs. Asynchronous on `stream`; the launch error, if any, is returned. n == 0
// is a no-op. Each reads its inputs and writes its output once: bandwidth-bound.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

enum class Function {
  kRelu,
  kSilu,
  kTanh,
  kSigmoid,
  kErf,
  kExp,
  kLog,
  kSqrt,
  kNeg,
  kGelu,       // 0.5 x (1 + tanh(...))
  kGeluExact,  // 0.5 x (1 + erf(...))
  kAbs,
  kSin,
  kCos,
  kSoftplus,
  kElu,          // x > 0 ? x : a (exp(x) - 1)
  kLeakyRelu,    // x > 0 ? x : a x
  kHardSigmoid,  // a x + b, between 0 and 1
  kClip,         // min(max(x, a), b)
  // Steps, without derivatives.
  kFloor,
  kCeil,
  kRound,  // halves to the even one
  kSign,
};

// A function with its constants.
struct Curve {
  Curve(Function function, float a = 0, float b = 0)  // NOLINT: most functions have no constants
      : function(function), a(a), b(b) {}

  Function function;
  float a;
  float b;
};

// y = f(x). kNeg and kAbs also of i32, modulo 2^32.
cudaError_t Apply(const Curve& f, void* y, const void* x, int64_t n, Type type,
                  cudaStream_t stream);

// dx = dy f'(x), from y = f(x) for kRelu, kTanh, kSigmoid, kSqrt and kExp and from x for the
// others; kNeg reads neither and `known` may be null. At a bend as kernels/activation.h.
cudaError_t ApplyGrad(const Curve& f, void* dx, const void* dy, const void* known, int64_t n,
                      Type type, cudaStream_t stream);

// y = 1 where x is NaN, else 0. y may be x where x is f32.
cudaError_t IsNan(int32_t* y, const void* x, int64_t n, Type type, cudaStream_t stream);

// y = terms[0] + terms[1] + ..., in f32 and in that order; 1 <= terms <= kTermsMax. y may be any.
inline constexpr int kTermsMax = 8;
cudaError_t Accumulate(void* y, const void* const* terms, int count, int64_t n, Type type,
                       cudaStream_t stream);

// Among f32, bf16, f16 and i32. To i32 truncates towards 0; NaN becomes 0, what does not fit the
// nearest. May be in place between types of one width.
cudaError_t Convert(void* y, Type to, const void* x, Type from, int64_t n, cudaStream_t stream);

// How a gradient leaves a run: to f32 = or += from / loss scale, or is left, as the run's numbers
// say.
cudaError_t ExportGradient(float* to, const void* from, Type type, const RunNumbers* numbers,
                           int64_t n, cudaStream_t stream);

// y f32 = x * samples of the run / samples of the global batch * loss scale: what a statistic
// parameter receives, to be exported like a gradient.
cudaError_t WeighStatistic(float* y, const float* x, const RunNumbers* numbers, int64_t n,
                           cudaStream_t stream);

// y = x * samples of the run / samples of the global batch, of one number; and its derivative times
// the loss scale, with which backward begins.
cudaError_t BatchShare(float* y, const float* x, const RunNumbers* numbers, cudaStream_t stream);
cudaError_t BatchShareGrad(float* dx, const RunNumbers* numbers, cudaStream_t stream);

// n elements of y become `value`.
cudaError_t Fill(void* y, double value, int64_t n, Type type, cudaStream_t stream);

// n elements of y become 0, 1, 2, ...
cudaError_t FillPositions(int32_t* y, int64_t n, cudaStream_t stream);

}  // namespace muster::kernels::cuda
