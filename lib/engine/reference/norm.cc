// Normalisations. Each defines which elements share a mean and a variance, and which share a gain
// and a bias.
#include <cmath>
#include <vector>

#include "lib/engine/reference/operators.h"
#include "lib/engine/reference/tensor.h"

namespace muster::reference {
namespace {

struct Moments {
  Tensor mean, mean_square, variance;  // variance: biased
  double count;                        // elements of each
};

// Computes moments over the elements that have the same set(index), an index of a tensor of
// `shape`.
template <typename F>
Moments MomentsOf(const Tensor& x, const Shape& shape, F set) {
  Moments m{.mean = Zeros(shape), .mean_square = Zeros(shape), .variance = Zeros(shape)};
  m.count = static_cast<double>(Elements(x.shape)) / static_cast<double>(Elements(shape));
  ForEach(x.shape, [&](const Index& index) {
    m.mean.at(set(index)) += x(index) / m.count;
    m.mean_square.at(set(index)) += x(index) * x(index) / m.count;
  });
  ForEach(x.shape, [&](const Index& index) {
    m.variance.at(set(index)) += std::pow(x(index) - m.mean(set(index)), 2) / m.count;
  });
  return m;
}

Tensor ReciprocalRoot(Tensor x, double epsilon) {
  for (double& value : x.values) value = 1 / std::sqrt(value + epsilon);
  return x;
}

Index Channel(const Index& index) { return {index[1]}; }
Index Last(const Index& index) { return {index.back()}; }
Index Leading(const Index& index) { return {index.begin(), index.end() - 1}; }

double Epsilon(const Call& call) { return call.Number("epsilon", 1e-5); }

// Returns ((x - mean) rstd) gain + bias, with one gain and bias per channel of an image.
Tensor PerChannel(const Call& call, const Tensor& mean, const Tensor& rstd) {
  const Tensor& x = call[0];
  return Generate(x.shape, [&](const Index& index) {
    const Index c = Channel(index);
    return (x(index) - mean(c)) * rstd(c) * (call.has(4) ? call[4](c) : 1) + call[3](c);
  });
}

std::vector<Tensor> BatchNorm(const Call& call) {
  const Moments m = MomentsOf(call[0], {call[0].shape[1]}, Channel);
  const Tensor rstd = ReciprocalRoot(m.variance, Epsilon(call));
  Tensor unbiased = m.variance;
  for (double& value : unbiased.values) value *= m.count / (m.count - 1);
  return {PerChannel(call, m.mean, rstd), m.mean, rstd, unbiased, State()};
}

std::vector<Tensor> BatchNormInference(const Call& call) {
  return {PerChannel(call, call[1], ReciprocalRoot(call[2], Epsilon(call)))};
}

std::vector<Tensor> LayerNorm(const Call& call) {
  const Tensor& x = call[0];
  const Moments m = MomentsOf(x, {x.shape.begin(), x.shape.end() - 1}, Leading);
  const Tensor rstd = ReciprocalRoot(m.variance, Epsilon(call));
  Tensor y = Generate(x.shape, [&](const Index& index) {
    const Index row = Leading(index), c = Last(index);
    return (x(index) - m.mean(row)) * rstd(row) * call[1](c) + (call.has(2) ? call[2](c) : 0);
  });
  return {y, m.mean, rstd};
}

std::vector<Tensor> RmsNorm(const Call& call) {
  const Tensor& x = call[0];
  const Moments m = MomentsOf(x, {x.shape.begin(), x.shape.end() - 1}, Leading);
  const Tensor rstd = ReciprocalRoot(m.mean_square, Epsilon(call));
  Tensor y = Generate(x.shape, [&](const Index& index) {
    return x(index) * rstd(Leading(index)) * call[1](Last(index));
  });
  return {y, rstd};
}

std::vector<Tensor> GroupNorm(const Call& call) {
  const Tensor& x = call[0];
  const int64_t groups = call.Integer("groups", 1), size = x.shape[1] / groups;
  auto group = [size](const Index& index) { return Index{index[0], index[1] / size}; };
  const Moments m = MomentsOf(x, {x.shape[0], groups}, group);
  const Tensor rstd = ReciprocalRoot(m.variance, Epsilon(call));
  Tensor y = Generate(x.shape, [&](const Index& index) {
    const Index g = group(index), c = Channel(index);
    return (x(index) - m.mean(g)) * rstd(g) * call[1](c) + call[2](c);
  });
  return {y, m.mean, rstd};
}

}  // namespace

void AddNorms(Operators& operators) {
  operators["BatchNorm"] = BatchNorm;
  operators["BatchNormInference"] = BatchNormInference;
  operators["LayerNorm"] = LayerNorm;
  operators["RmsNorm"] = RmsNorm;
  operators["GroupNorm"] = GroupNorm;
}

}  // namespace muster::reference
