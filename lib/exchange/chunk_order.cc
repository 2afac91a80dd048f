#include "lib/exchange/chunk_order.h"

#include <algorithm>
#include <string>

#include "absl/container/flat_hash_map.h"

namespace muster {
namespace {

// Returns for each parameter the index of the first node that reads it.
std::vector<int> FirstReaders(const v1::Graph& graph) {
  absl::flat_hash_map<std::string, int> parameter_of;
  for (int p = 0; p < graph.parameters_size(); ++p) parameter_of[graph.parameters(p).name()] = p;
  std::vector<int> reader(graph.parameters_size(), graph.nodes_size());
  for (int n = graph.nodes_size() - 1; n >= 0; --n) {
    for (const std::string& input : graph.nodes(n).inputs()) {
      auto parameter = parameter_of.find(input);
      if (parameter != parameter_of.end()) reader[parameter->second] = n;
    }
  }
  return reader;
}

}  // namespace

std::vector<ChunkId> ChunksByFirstUse(const v1::JobPlan& plan) {
  const std::vector<int> reader = FirstReaders(plan.graph());
  std::vector<ChunkId> order;
  for (const ChunkId id : NumbersBelow<ChunkId>(plan.chunks_size())) order.push_back(id);
  std::ranges::stable_sort(order, {},
                           [&](ChunkId id) { return reader[plan.chunks(ToInt(id)).parameter()]; });
  return order;
}

}  // namespace muster
