// Functions of one variable and their derivatives over n elements, f32. Each output may be one of
// the inputs. n == 0 is a no-op. In parallel; NaN stays NaN, so that a diverged model is seen.
//
// Within 1e-6 of the true value for any finite x, but for results below 1e-35, which may be 0, and
// where a line says otherwise. Each reads n (a derivative 2n) floats and writes n:
// bandwidth-bound beyond the caches.
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

// Of 0: -inf; of less: NaN.
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

// y = alpha x + beta, between 0 and 1: within 1e-6 of max(|alpha x|, |beta|).
void HardSigmoid(float* y, const float* x, float alpha, float beta, int64_t n);

// y = min(max(x, low), high).
void Clip(float* y, const float* x, float low, float high, int64_t n);

void Floor(float* y, const float* x, int64_t n);
void Ceil(float* y, const float* x, int64_t n);

// Halves to the even one.
void Round(float* y, const float* x, int64_t n);

// y = -1, 0 or 1.
void Sign(float* y, const float* x, int64_t n);

// y = 1 where x is NaN, else 0. y may be x.
void IsNan(int32_t* y, const float* x, int64_t n);

// y = 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x³), computed as x / (1 + exp(-2u)): within
// 1e-6 of max(|y|, 1e-2).
//   Source: Hendrycks, Gimpel, "Gaussian error linear units", arXiv:1606.08415.
void Gelu(float* y, const float* x, int64_t n);

// y = 0.5 x (1 + erf(x / sqrt 2)): within 1e-6 of max(|y|, 1e-2).
void GeluExact(float* y, const float* x, int64_t n);

// From the function's value y: dx = dy f'(x).
void ReluGrad(float* dx, const float* dy, const float* y, int64_t n);  // 0 where y <= 0
void TanhGrad(float* dx, const float* dy, const float* y, int64_t n);
void SigmoidGrad(float* dx, const float* dy, const float* y, int64_t n);
void ExpGrad(float* dx, const float* dy, const float* y, int64_t n);
void SqrtGrad(float* dx, const float* dy, const float* y, int64_t n);

// From its argument x. Near a zero of a derivative the error is 1e-6 of 1 instead.
void SiluGrad(float* dx, const float* dy, const float* x, int64_t n);
void GeluGrad(float* dx, const float* dy, const float* x, int64_t n);
void GeluExactGrad(float* dx, const float* dy, const float* x, int64_t n);
void ErfGrad(float* dx, const float* dy, const float* x, int64_t n);
void LogGrad(float* dx, const float* dy, const float* x, int64_t n);
void AbsGrad(float* dx, const float* dy, const float* x, int64_t n);  // 0 where x is 0
void SinGrad(float* dx, const float* dy, const float* x, int64_t n);
void CosGrad(float* dx, const float* dy, const float* x, int64_t n);
void SoftplusGrad(float* dx, const float* dy, const float* x, int64_t n);
void EluGrad(float* dx, const float* dy, const float* x, float alpha, int64_t n);
void LeakyReluGrad(float* dx, const float* dy, const float* x, float slope, int64_t n);

// 0 where alpha x + beta is not inside (0, 1).
void HardSigmoidGrad(float* dx, const float* dy, const float* x, float alpha, float beta,
                     int64_t n);

// dy where low <= x <= high, else 0.
void ClipGrad(float* dx, const float* dy, const float* x, float low, float high, int64_t n);

}  // namespace muster::kernels
