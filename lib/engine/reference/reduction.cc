#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "lib/engine/reference/operators.h"
#include "lib/engine/reference/tensor.h"

namespace muster::reference {
namespace {

// Folds the elements along `axes` with f(result so far, element), starting from `start`.
template <typename F>
Tensor Reduce(const Call& call, double start, F f) {
  const Tensor& x = call[0];
  std::vector<bool> reduced(x.rank(), false);
  for (int64_t axis : call.Integers("axes", {})) reduced[Dimension(axis, x.rank())] = true;
  const bool keep = call.Integer("keep", 1);

  auto project = [&](const std::vector<int64_t>& of_x, int64_t along_reduced) {
    std::vector<int64_t> result;
    for (int64_t k = 0; k < x.rank(); ++k) {
      if (!reduced[k]) result.push_back(of_x[k]);
      if (reduced[k] && keep) result.push_back(along_reduced);
    }
    return result;
  };
  Tensor y = Zeros(project(x.shape, 1));
  std::ranges::fill(y.values, start);
  ForEach(x.shape, [&](const Index& index) {
    double& so_far = y.at(project(index, 0));
    so_far = f(so_far, x(index));
  });
  return y;
}

std::vector<Tensor> ReduceSum(const Call& call) { return {Reduce(call, 0, std::plus<double>())}; }

std::vector<Tensor> ReduceMean(const Call& call) {
  Tensor y = Reduce(call, 0, std::plus<double>());
  const double count = static_cast<double>(call[0].values.size() / y.values.size());
  for (double& value : y.values) value /= count;
  return {y};
}

std::vector<Tensor> ReduceMax(const Call& call) {
  return {Reduce(call, -std::numeric_limits<double>::infinity(),
                 [](double a, double b) { return std::max(a, b); })};
}

std::vector<Tensor> CumSum(const Call& call) {
  const Tensor& x = call[0];
  const int64_t axis = Dimension(call.Integer("axis", 0), x.rank());
  const bool exclusive = call.Integer("exclusive", 0), reverse = call.Integer("reverse", 0);
  Tensor y = Generate(x.shape, [&](const Index& index) {
    double sum = 0;
    for (int64_t k = 0; k < x.shape[axis]; ++k) {
      const int64_t ahead = reverse ? k - index[axis] : index[axis] - k;
      if (ahead > 0 || (ahead == 0 && !exclusive)) sum += x(With(index, axis, k));
    }
    return sum;
  });
  y.is_integer = x.is_integer;
  return {y};
}

std::vector<Tensor> LogSoftmax(const Call& call) {
  Tensor y = call[0];
  for (int64_t row = 0; row < Elements(y.shape) / y.last(); ++row) {
    double* values = &y.values[row * y.last()];
    const double max = *std::max_element(values, values + y.last());
    double sum = 0;
    for (int64_t v = 0; v < y.last(); ++v) sum += std::exp(values[v] - max);
    for (int64_t v = 0; v < y.last(); ++v) values[v] -= max + std::log(sum);
  }
  return {y};
}

std::vector<Tensor> Softmax(const Call& call) {
  std::vector<Tensor> y = LogSoftmax(call);
  for (double& value : y[0].values) value = std::exp(value);
  return y;
}

}  // namespace

void AddReductions(Operators& operators) {
  operators["ReduceSum"] = ReduceSum;
  operators["ReduceMean"] = ReduceMean;
  operators["ReduceMax"] = ReduceMax;
  operators["CumSum"] = CumSum;
  operators["Softmax"] = Softmax;
  operators["LogSoftmax"] = LogSoftmax;
}

}  // namespace muster::reference
