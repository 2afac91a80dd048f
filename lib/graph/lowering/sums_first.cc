#include "lib/graph/lowering/sums_first.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "google/protobuf/repeated_field.h"
#include "lib/graph/lowering/fusion/graph_edit.h"

namespace muster {
namespace {

// Returns the nodes that make what node `sum` adds up over the ranks: one, or those of several
// layers with the same input.
std::vector<int> MakersOfTerms(const GraphEdit& edit, int sum) {
  const int maker = edit.Maker(edit.node(sum).inputs(0));
  if (!edit.Is(maker, "Accumulate")) return {maker};
  std::vector<int> makers;
  for (const std::string& term : edit.node(maker).inputs()) makers.push_back(edit.Maker(term));
  return makers;
}

// Returns whether `node` must run before node `sum`.
bool PrecedesSum(const GraphEdit& edit, int node, int sum) {
  return std::ranges::any_of(edit.node(node).outputs(), [&](const std::string& output) {
    const absl::Span<const int> readers = edit.Readers(output);
    return !readers.empty() && readers.front() <= sum;
  });
}

// Returns the node behind which each node goes: itself if it stays.
std::vector<int> Places(const GraphEdit& edit) {
  std::vector<int> places(edit.size());
  std::iota(places.begin(), places.end(), 0);
  for (int sum = 0; sum < edit.size(); ++sum) {
    if (!edit.Is(sum, "AllReduce")) continue;
    for (int maker : MakersOfTerms(edit, sum)) {
      if (maker < 0 || edit.node(maker).inputs().empty()) continue;
      for (int sibling : edit.Readers(edit.node(maker).inputs(0))) {
        if (sibling < sum && !PrecedesSum(edit, sibling, sum)) places[sibling] = sum;
      }
    }
  }
  return places;
}

}  // namespace

void PutSumsFirst(v1::Graph& graph) {
  const std::vector<int> places = Places(GraphEdit(graph));
  std::vector<int> order(places.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int i) { return std::pair(places[i], places[i] != i); });
  google::protobuf::RepeatedPtrField<v1::Node> nodes;
  for (int i : order) nodes.Add(std::move(*graph.mutable_nodes(i)));
  graph.mutable_nodes()->Swap(&nodes);
}

}  // namespace muster
