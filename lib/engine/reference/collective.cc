// Ops that all ranks of a split graph compute together.
#include <vector>

#include "lib/engine/reference/operators.h"
#include "lib/engine/reference/tensor.h"

namespace muster::reference {
namespace {

std::vector<std::vector<Tensor>> AllReduce(absl::Span<const Call> ranks) {
  Tensor sum = Zeros(ranks[0][0].shape);
  for (const Call& call : ranks) {
    for (size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += call[0].values[i];
  }
  return std::vector<std::vector<Tensor>>(ranks.size(), {sum});
}

std::vector<std::vector<Tensor>> GradientAllReduce(absl::Span<const Call> ranks) {
  std::vector<std::vector<Tensor>> outputs;
  for (const Call& call : ranks) outputs.push_back({call[0]});
  return outputs;
}

}  // namespace

void AddCollectives(CollectiveOperators& operators) {
  operators["AllReduce"] = AllReduce;
  operators["GradientAllReduce"] = GradientAllReduce;
}

}  // namespace muster::reference
