#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <vector>

#include "glog/logging.h"
#include "kernels/philox.h"
#include "lib/engine/reference/operators.h"
#include "lib/engine/reference/tensor.h"

namespace muster::reference {
namespace {

template <typename F>
Tensor Map(const Tensor& x, F f) {
  return Generate(x.shape, [&](const Index& index) { return f(x(index)); });
}

template <auto F>
std::vector<Tensor> Unary(const Call& call) {
  return {Map(call[0], F)};
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double TanhGelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double ExactGelu(double x) { return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2)); }

std::vector<Tensor> Gelu(const Call& call) {
  return call.Integer("exact", 0) ? Unary<ExactGelu>(call) : Unary<TanhGelu>(call);
}

std::vector<Tensor> Elu(const Call& call) {
  return {Map(call[0], [alpha = call.Number("alpha", 1)](double x) {
    return x > 0 ? x : alpha * std::expm1(x);
  })};
}

std::vector<Tensor> LeakyRelu(const Call& call) {
  return {Map(call[0],
              [slope = call.Number("slope", 0.01)](double x) { return x > 0 ? x : slope * x; })};
}

std::vector<Tensor> HardSigmoid(const Call& call) {
  const double alpha = call.Number("alpha", 0.2), beta = call.Number("beta", 0.5);
  return {Map(call[0], [&](double x) { return std::clamp(alpha * x + beta, 0.0, 1.0); })};
}

std::vector<Tensor> Clip(const Call& call) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double low = call.Number("min", -kInfinity), high = call.Number("max", kInfinity);
  return {Map(call[0], [&](double x) { return std::min(std::max(x, low), high); })};
}

std::vector<Tensor> IsNan(const Call& call) {
  Tensor y = Map(call[0], [](double x) { return std::isnan(x) ? 1 : 0; });
  y.is_integer = true;
  return {y};
}

template <auto F>
std::vector<Tensor> Binary(const Call& call) {
  return {Generate(BroadcastShapes(call[0].shape, call[1].shape), [&](const Index& index) {
    return F(call[0].Broadcast(index), call[1].Broadcast(index));
  })};
}

double Modulo(double a, double b) { return a - b * std::floor(a / b); }

// Evaluates F on two i32 tensors: the exact result modulo 2^32.
template <auto F>
std::vector<Tensor> OfIntegers(const Call& call) {
  Tensor y =
      Generate(BroadcastShapes(call[0].shape, call[1].shape), [&](const Index& index) -> double {
        const int64_t exact = F(static_cast<int64_t>(call[0].Broadcast(index)),
                                static_cast<int64_t>(call[1].Broadcast(index)));
        return static_cast<int32_t>(static_cast<uint64_t>(exact));
      });
  y.is_integer = true;
  return {y};
}

template <auto F, auto OfInt64>
std::vector<Tensor> Arithmetic(const Call& call) {
  return call[0].is_integer ? OfIntegers<OfInt64>(call) : Binary<F>(call);
}

template <auto F>
std::vector<Tensor> Comparison(const Call& call) {
  std::vector<Tensor> y = Binary<F>(call);
  y[0].is_integer = true;
  return y;
}

// Evaluates Neg and Abs on floats and integers.
template <auto F>
std::vector<Tensor> Signed(const Call& call) {
  std::vector<Tensor> y = Unary<F>(call);
  y[0].is_integer = call[0].is_integer;
  return y;
}

std::vector<Tensor> Where(const Call& call) {
  const Shape shape = BroadcastShapes(call[0].shape, BroadcastShapes(call[1].shape, call[2].shape));
  Tensor y = Generate(shape, [&](const Index& index) {
    return call[call[0].Broadcast(index) != 0 ? 1 : 2].Broadcast(index);
  });
  y.is_integer = call[1].is_integer;
  return {y};
}

// A cast to a narrower floating type does not round here.
std::vector<Tensor> Cast(const Call& call) {
  Tensor y = call[0];
  y.is_integer = call.Word("to", "") == "i32";
  if (y.is_integer) {
    for (double& value : y.values) value = std::trunc(value);
  }
  return {y};
}

// Returns the number in [0, 1) that decides whether the element at `position` of the global batch
// is dropped.
double Chance(const Call& call, uint64_t position) {
  const uint64_t stream = uint64_t{1} << 63 | static_cast<uint64_t>(call.Integer("salt", 0)) << 32 |
                          static_cast<uint32_t>(call.run.step);
  return kernels::UnitUniform(
      kernels::RandomWords(call.run.seed, stream, position / 4)[position % 4]);
}

std::vector<Tensor> Dropout(const Call& call) {
  const double rate = call.Number("rate", 0);
  const int64_t columns = call[0].shape.empty() ? 1 : call[0].last();
  const int64_t whole = call.Integer("whole", columns), first = call.Integer("first", 0);
  const int64_t sample = Elements(call[0].shape) / columns * whole / call.samples;
  const uint64_t start = call.run.first_position * sample;
  int64_t i = 0;
  return {Generate(call[0].shape, [&](const Index& index) {
    const uint64_t position = start + i / columns * whole + first + i % columns;
    ++i;
    return Chance(call, position) < static_cast<float>(rate) ? 0 : call[0](index) / (1 - rate);
  })};
}

}  // namespace

void AddElementwise(Operators& operators) {
  operators["Relu"] = Unary<[](double x) { return std::max(x, 0.0); }>;
  operators["Silu"] = Unary<[](double x) { return x * Sigmoid(x); }>;
  operators["Tanh"] = Unary<[](double x) { return std::tanh(x); }>;
  operators["Sigmoid"] = Unary<Sigmoid>;
  operators["Erf"] = Unary<[](double x) { return std::erf(x); }>;
  operators["Exp"] = Unary<[](double x) { return std::exp(x); }>;
  operators["Log"] = Unary<[](double x) { return std::log(x); }>;
  operators["Sqrt"] = Unary<[](double x) { return std::sqrt(x); }>;
  operators["Neg"] = Signed<[](double x) { return -x; }>;
  operators["Gelu"] = Gelu;
  operators["Abs"] = Signed<[](double x) { return std::abs(x); }>;
  operators["Sin"] = Unary<[](double x) { return std::sin(x); }>;
  operators["Cos"] = Unary<[](double x) { return std::cos(x); }>;
  operators["Softplus"] = Unary<[](double x) { return std::log1p(std::exp(x)); }>;
  operators["Elu"] = Elu;
  operators["LeakyRelu"] = LeakyRelu;
  operators["HardSigmoid"] = HardSigmoid;
  operators["Clip"] = Clip;
  operators["Floor"] = Unary<[](double x) { return std::floor(x); }>;
  operators["Ceil"] = Unary<[](double x) { return std::ceil(x); }>;
  operators["Round"] = Unary<[](double x) { return std::nearbyint(x); }>;
  operators["Sign"] = Unary<[](double x) { return double(x > 0) - double(x < 0); }>;
  operators["IsNan"] = IsNan;
  operators["Add"] = Arithmetic<[](double a, double b) { return a + b; },
                                [](int64_t a, int64_t b) { return a + b; }>;
  operators["Sub"] = Arithmetic<[](double a, double b) { return a - b; },
                                [](int64_t a, int64_t b) { return a - b; }>;
  operators["Mul"] = Arithmetic<[](double a, double b) { return a * b; },
                                [](int64_t a, int64_t b) { return a * b; }>;
  operators["Div"] = Arithmetic<[](double a, double b) { return a / b; },
                                [](int64_t a, int64_t b) { return b == 0 ? 0 : a / b; }>;
  operators["Mod"] =
      Arithmetic<Modulo, [](int64_t a, int64_t b) { return b == 0 ? 0 : (a % b + b) % b; }>;
  operators["Minimum"] = Arithmetic<[](double a, double b) { return std::min(a, b); },
                                    [](int64_t a, int64_t b) { return std::min(a, b); }>;
  operators["Maximum"] = Arithmetic<[](double a, double b) { return std::max(a, b); },
                                    [](int64_t a, int64_t b) { return std::max(a, b); }>;
  operators["Equal"] = Comparison<[](double a, double b) { return double(a == b); }>;
  operators["Less"] = Comparison<[](double a, double b) { return double(a < b); }>;
  operators["LessOrEqual"] = Comparison<[](double a, double b) { return double(a <= b); }>;
  operators["Pow"] = Binary<[](double a, double b) { return std::pow(a, b); }>;
  operators["Where"] = Where;
  operators["Cast"] = Cast;
  operators["Dropout"] = Dropout;
}

}  // namespace muster::reference
