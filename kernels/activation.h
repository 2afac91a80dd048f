// Functions of one variable and their derivatives over n f32 elements, in parallel. An output may
// be one of the inputs. n == 0 is a no-op. NaN stays NaN, so that a diverged model is seen.
//
// The relative error is at most 1e-6 for any finite x unless a comment says otherwise. Results
// below 1e-35 may be 0. A function reads n floats, a derivative 2n; both write n: bandwidth-bound
// beyond the caches.
#pragma once

#include <cstdint>

namespace muster::kernels {

// y = max(x, 0).
void Relu(float* y, const float* x, int64_t n);

// y = x / (1 + exp(-x)).
void Silu(float* y, const float* x, int64_t n);

void Tanh(float* y, const float* x, int64_t n);

// y = 1 / (1 + exp(-x)).
void Sigmoid(float* y, const float* x, int64_t n);

void Erf(float* y, const float* x, int64_t n);
void Exp(float* y, const float* x, int64_t n);

// The log of 0 is -inf; that of a negative number is NaN.
void Log(float* y, const float* x, int64_t n);
void Sqrt(float* y, const float* x, int64_t n);
void Neg(float* y, const float* x, int64_t n);

void Abs(float* y, const float* x, int64_t n);
void Sin(float* y, const float* x, int64_t n);
void Cos(float* y, const float* x, int64_t n);

// y = log(1 + exp(x)).
void Softplus(float* y, const float* x, int64_t n);

// y = x > 0 ? x : alpha (exp(x) - 1).
//   Source: Clevert et al., "Fast and accurate deep network learning by exponential linear units",
//   arXiv:1511.07289.
void Elu(float* y, const float* x, float alpha, int64_t n);

// y = x > 0 ? x : slope x.
void LeakyRelu(float* y, const float* x, float slope, int64_t n);

// y = min(max(alpha x + beta, 0), 1). The error is at most 1e-6 max(|alpha x|, |beta|).
void HardSigmoid(float* y, const float* x, float alpha, float beta, int64_t n);

// y = min(max(x, low), high).
void Clip(float* y, const float* x, float low, float high, int64_t n);

void Floor(float* y, const float* x, int64_t n);
void Ceil(float* y, const float* x, int64_t n);

// Rounds halves to the even neighbour.
void Round(float* y, const float* x, int64_t n);

// y = -1, 0 or 1.
void Sign(float* y, const float* x, int64_t n);

// y = 1 if x is NaN, else 0. y may be x.
void IsNan(int32_t* y, const float* x, int64_t n);

// y = 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x³), computed as x / (1 + exp(-2u)). The
// error is at most 1e-6 max(|y|, 1e-2).
//   Source: Hendrycks, Gimpel, "Gaussian error linear units", arXiv:1606.08415.
void Gelu(float* y, const float* x, int64_t n);

// y = 0.5 x (1 + erf(x / sqrt 2)). The error is at most 1e-6 max(|y|, 1e-2).
void GeluExact(float* y, const float* x, int64_t n);

// dx = dy f'(x), computed from the function's value y.
void ReluGrad(float* dx, const float* dy, const float* y, int64_t n);  // 0 if y <= 0
void TanhGrad(float* dx, const float* dy, const float* y, int64_t n);
void SigmoidGrad(float* dx, const float* dy, const float* y, int64_t n);
void ExpGrad(float* dx, const float* dy, const float* y, int64_t n);
void SqrtGrad(float* dx, const float* dy, const float* y, int64_t n);

// dx = dy f'(x), computed from the argument x. Near a zero of f' the error of f' is at most 1e-6.
void SiluGrad(float* dx, const float* dy, const float* x, int64_t n);
void GeluGrad(float* dx, const float* dy, const float* x, int64_t n);
void GeluExactGrad(float* dx, const float* dy, const float* x, int64_t n);
void ErfGrad(float* dx, const float* dy, const float* x, int64_t n);
void LogGrad(float* dx, const float* dy, const float* x, int64_t n);
void AbsGrad(float* dx, const float* dy, const float* x, int64_t n);  // 0 if x is 0
void SinGrad(float* dx, const float* dy, const float* x, int64_t n);
void CosGrad(float* dx, const float* dy, const float* x, int64_t n);
void SoftplusGrad(float* dx, const float* dy, const float* x, int64_t n);
void EluGrad(float* dx, const float* dy, const float* x, float alpha, int64_t n);
void LeakyReluGrad(float* dx, const float* dy, const float* x, float slope, int64_t n);

// dx = alpha dy if alpha x + beta is in (0, 1), else 0.
void HardSigmoidGrad(float* dx, const float* dy, const float* x, float alpha, float beta,
                     int64_t n);

// dx = dy if low <= x <= high, else 0.
void ClipGrad(float* dx, const float* dy, const float* x, float low, float high, int64_t n);

}  // namespace muster::kernels
