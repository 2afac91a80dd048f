// Losses: shares of the global batch's mean.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "glog/logging.h"
#include "lib/engine/reference/operators.h"
#include "lib/engine/reference/tensor.h"

namespace muster::reference {
namespace {

bool Counts(const Call& call, double target) {
  return !call.has("ignore_index") || target != call.Integer("ignore_index", 0);
}

// Returns the number of rows of the global batch that count.
double CountedRows(const Call& call) {
  const Tensor& target = call[1];
  if (!call.has("ignore_index")) {
    return static_cast<double>(target.values.size()) * call.Shares();
  }
  if (call.run.counted_targets.empty()) {
    return static_cast<double>(
        std::ranges::count_if(target.values, [&](double t) { return Counts(call, t); }));
  }
  const auto input = std::ranges::find(call.graph.inputs(), call.node.inputs(1),
                                       [](const v1::GraphInput& i) { return i.name(); });
  CHECK(input != call.graph.inputs().end())
      << call.node.inputs(1) << " is not an input of the graph";
  return static_cast<double>(call.run.counted_targets[input - call.graph.inputs().begin()]);
}

// Returns the logits of all classes, which the ranks have in parts.
Tensor AllLogits(absl::Span<const Call> ranks) {
  Tensor all = ranks[0][0];
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    const Tensor &left = all, &right = ranks[rank][0];
    Shape shape = left.shape;
    shape.back() += right.last();
    all = Generate(shape, [&](Index index) {
      if (index.back() < left.last()) return left(index);
      index.back() -= left.last();
      return right(index);
    });
  }
  return all;
}

std::vector<Tensor> LossOf(const Call& call, const Tensor& logits) {
  const Tensor& target = call[1];
  const int64_t classes = logits.last();
  const double smoothing = call.Number("label_smoothing", 0);
  Tensor lse = Zeros(target.shape);
  double sum = 0;
  for (size_t row = 0; row < target.values.size(); ++row) {
    const double* values = &logits.values[row * classes];
    const double max = *std::max_element(values, values + classes);
    double exponentials = 0;
    for (int64_t v = 0; v < classes; ++v) exponentials += std::exp(values[v] - max);
    lse.values[row] = max + std::log(exponentials);

    if (!Counts(call, target.values[row])) continue;
    for (int64_t v = 0; v < classes; ++v) {
      const double wanted =
          (v == target.values[row] ? 1 - smoothing : 0) + smoothing / static_cast<double>(classes);
      sum += wanted * (lse.values[row] - values[v]);
    }
  }
  const double counted = CountedRows(call);
  return {Scalar(counted == 0 ? 0 : call.Number("weight", 1) * sum / counted), lse};
}

std::vector<std::vector<Tensor>> SoftmaxCrossEntropy(absl::Span<const Call> ranks) {
  const bool is_split = ranks[0].Integer("ranks", 1) > 1;
  std::vector<std::vector<Tensor>> outputs;
  for (const Call& call : ranks) {
    outputs.push_back(LossOf(call, is_split ? AllLogits(ranks) : call[0]));
  }
  return outputs;
}

// Returns the mean of term(output, target) over the elements of the global batch.
template <typename F>
std::vector<Tensor> PerElement(const Call& call, F term) {
  const Tensor &output = call[0], &target = call[1];
  double sum = 0;
  for (size_t i = 0; i < output.values.size(); ++i) sum += term(output.values[i], target.values[i]);
  const double elements = static_cast<double>(output.values.size()) * call.Shares();
  return {Scalar(call.Number("weight", 1) * sum / elements)};
}

std::vector<Tensor> SigmoidCrossEntropy(const Call& call) {
  return PerElement(call, [](double x, double target) {
    return target * std::log1p(std::exp(-x)) + (1 - target) * (x + std::log1p(std::exp(-x)));
  });
}

std::vector<Tensor> MeanSquaredError(const Call& call) {
  return PerElement(call, [](double x, double target) { return (x - target) * (x - target); });
}

std::vector<Tensor> BatchShare(const Call& call) {
  return {Scalar(call[0].values[0] / call.Shares())};
}

std::vector<Tensor> TotalLoss(const Call& call) {
  double sum = 0;
  for (const Tensor* loss : call.inputs) sum += loss->values[0];
  return {Scalar(sum)};
}

std::vector<Tensor> CorrectCount(const Call& call) {
  const Tensor &logits = call[0], &target = call[1];
  double count = 0;
  for (size_t row = 0; row < target.values.size(); ++row) {
    const auto first = logits.values.begin() + row * logits.last();
    const auto largest = std::max_element(first, first + logits.last()) - first;
    count += Counts(call, target.values[row]) && largest == target.values[row];
  }
  return {Scalar(count)};
}

}  // namespace

void AddLosses(Operators& operators) {
  operators["SigmoidCrossEntropy"] = SigmoidCrossEntropy;
  operators["MeanSquaredError"] = MeanSquaredError;
  operators["BatchShare"] = BatchShare;
  operators["TotalLoss"] = TotalLoss;
  operators["CorrectCount"] = CorrectCount;
}

void AddSplitLosses(CollectiveOperators& operators) {
  operators["SoftmaxCrossEntropy"] = SoftmaxCrossEntropy;
}

}  // namespace muster::reference
