// Functions of one variable and their derivatives. CUDA twins of kernels/activation.h, and more.
//
// Tensors are in device memory, 16-byte aligned, with n elements of floating `type`. An output may
// be one of the inputs. Asynchronous on `stream`. Returns the launch error, if any. n == 0 is a
// no-op. Each function reads its inputs and writes its output once: bandwidth-bound.
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
  kRound,  // halves to even
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

// y = f(x). kNeg and kAbs also take i32, modulo 2^32.
cudaError_t Apply(const Curve& f, void* y, const void* x, int64_t n, Type type,
                  cudaStream_t stream);

// dx = dy f'(x). `known` is y = f(x) for kRelu, kTanh, kSigmoid, kSqrt and kExp, and x for the
// others; kNeg reads neither, so it may be null. At a kink the derivative is that of
// kernels/activation.h.
cudaError_t ApplyGrad(const Curve& f, void* dx, const void* dy, const void* known, int64_t n,
                      Type type, cudaStream_t stream);

// y = 1 where x is NaN, else 0. y may be x if x is f32.
cudaError_t IsNan(int32_t* y, const void* x, int64_t n, Type type, cudaStream_t stream);

// y = terms[0] + terms[1] + ..., in f32 and in that order; 1 <= terms <= kTermsMax. y may be any of
// the terms.
inline constexpr int kTermsMax = 8;
cudaError_t Accumulate(void* y, const void* const* terms, int count, int64_t n, Type type,
                       cudaStream_t stream);

// Converts among f32, bf16, f16 and i32. To i32 it truncates towards 0: NaN becomes 0, and a value
// out of range becomes the nearest i32. May be in place between types of the same width.
cudaError_t Convert(void* y, Type to, const void* x, Type from, int64_t n, cudaStream_t stream);

// Writes a gradient out at the end of a run. numbers->gradients says whether from / loss scale is
// assigned to `to`, is added to it, or is not used.
cudaError_t ExportGradient(float* to, const void* from, Type type, const RunNumbers* numbers,
                           int64_t n, cudaStream_t stream);

// y f32 = x * samples of the run / samples of the global batch * loss scale: the contribution to a
// statistic parameter, which is exported like a gradient.
cudaError_t WeighStatistic(float* y, const float* x, const RunNumbers* numbers, int64_t n,
                           cudaStream_t stream);

// y = x * samples of the run / samples of the global batch, of one number. BatchShareGrad() is its
// derivative times the loss scale: the first gradient of the backward pass.
cudaError_t BatchShare(float* y, const float* x, const RunNumbers* numbers, cudaStream_t stream);
cudaError_t BatchShareGrad(float* dx, const RunNumbers* numbers, cudaStream_t stream);

// Sets n elements of y to `value`.
cudaError_t Fill(void* y, double value, int64_t n, Type type, cudaStream_t stream);

// Sets n elements of y to 0, 1, 2, ...
cudaError_t FillPositions(int32_t* y, int64_t n, cudaStream_t stream);

}  // namespace muster::kernels::cuda
