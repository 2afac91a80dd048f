#include "lib/graph/gradient_order.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/container/flat_hash_map.h"

namespace muster {

std::vector<int> GradientOrder(const v1::Graph& graph) {
  absl::flat_hash_map<std::string, int> last_use;  // the last node that reads or writes each tensor
  for (int n = 0; n < graph.nodes_size(); ++n) {
    for (const std::string& input : graph.nodes(n).inputs()) last_use[input] = n;
    for (const std::string& output : graph.nodes(n).outputs()) last_use[output] = n;
  }
  std::vector<int> ready(graph.parameters_size()), order(graph.parameters_size());
  for (int p = 0; p < graph.parameters_size(); ++p) {
    ready[p] = std::max(last_use[graph.parameters(p).name()], last_use[graph.gradients(p)]);
  }
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int p) { return ready[p]; });
  return order;
}

}  // namespace muster
