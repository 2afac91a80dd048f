#include "kernels/cpu/norm_loops.h"

#include "kernels/cpu/vector.h"

namespace muster::kernels::KERNELS_SIMD {
namespace {

using Moments = NormLoops::Moments;

void AddTo(float* sum, const float* a, const float* b, int64_t n) {
  Map([](Vec u, Vec v) { return u + v; }, n, sum, a, b);
}

double Sum(const float* x, int64_t n) {
  return Reduce([](Vec v) { return v; }, n, x);
}

float RstdOf(double variance, float epsilon) {
  return static_cast<float>(1.0 / __builtin_sqrt(variance + epsilon));
}

Moments MomentsOf(const float* x, float epsilon, int64_t n) {
  const float mean = static_cast<float>(Sum(x, n) / n);
  auto square = [mean](Vec v) { return (v - mean) * (v - mean); };
  const double squares = SumBlocks(
      n, [=](int64_t i) { return square(Load(x + i)); },
      [=](int64_t i, int64_t m) { return square(LoadFirst(x + i, m, mean)); });
  return {.mean = mean, .rstd = RstdOf(squares / n, epsilon)};
}

void Normalise(float* y, const float* x, Moments m, const float* gain, const float* bias,
               int64_t n) {
  if (bias == nullptr) {
    Map([m](Vec v, Vec g) { return (v - m.mean) * m.rstd * g; }, n, y, x, gain);
  } else {
    Map([m](Vec v, Vec g, Vec b) { return (v - m.mean) * m.rstd * g + b; }, n, y, x, gain, bias);
  }
}

void GradInput(float* dx, const float* dy, const float* x, const float* gain, Moments m,
               int64_t n) {
  auto normal = [m](Vec v) { return (v - m.mean) * m.rstd; };
  const float sum = static_cast<float>(Reduce([](Vec d, Vec g) { return d * g; }, n, dy, gain) / n);
  const float dot = static_cast<float>(
      Reduce([normal](Vec d, Vec g, Vec v) { return d * g * normal(v); }, n, dy, gain, x) / n);
  Map([=](Vec d, Vec g, Vec v) { return m.rstd * (d * g - sum - normal(v) * dot); }, n, dx, dy,
      gain, x);
}

void AddGradParameters(float* dgain, float* dbias, const float* dy, const float* x, Moments m,
                       int64_t n) {
  Map([m](Vec s, Vec d, Vec v) { return s + d * ((v - m.mean) * m.rstd); }, n, dgain,
      static_cast<const float*>(dgain), dy, x);
  if (dbias != nullptr) AddTo(dbias, dbias, dy, n);
}

float RmsRstd(const float* x, float epsilon, int64_t n) {
  return RstdOf(Reduce([](Vec v) { return v * v; }, n, x) / n, epsilon);
}

void RmsGradInput(float* dx, const float* dy, const float* x, const float* gain, float rstd,
                  int64_t n) {
  const float dot = static_cast<float>(
      Reduce([rstd](Vec d, Vec g, Vec v) { return d * g * (v * rstd); }, n, dy, gain, x) / n);
  Map([=](Vec d, Vec g, Vec v) { return rstd * (d * g - v * rstd * dot); }, n, dx, dy, gain, x);
}

void Shifted(float* y, const float* x, float center, float factor, float offset, int64_t n) {
  Map([=](Vec v) { return (v - center) * factor + offset; }, n, y, x);
}

void GradRow(float* dx, float factor, const float* dy, float slope, const float* x, float center,
             float offset, int64_t n) {
  Map([=](Vec d, Vec v) { return factor * d + (slope * (v - center) + offset); }, n, dx, dy, x);
}

double CenteredDot(const float* x, const float* z, float center, int64_t n) {
  return Reduce([center](Vec u, Vec v) { return u * (v - center); }, n, x, z);
}

}  // namespace

extern const NormLoops kNormLoops;
const NormLoops kNormLoops = {
    .add = AddTo,
    .moments = MomentsOf,
    .normalise = Normalise,
    .grad_input = GradInput,
    .add_grad_parameters = AddGradParameters,
    .rms_rstd = RmsRstd,
    .rms_grad_input = RmsGradInput,
    .shifted = Shifted,
    .grad_row = GradRow,
    .sum = Sum,
    .centered_dot = CenteredDot,
};

}  // namespace muster::kernels::KERNELS_SIMD
