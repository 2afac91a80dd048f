#include "lib/exchange/chunk_order.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "lib/plan/parameter_table.h"

namespace muster {
namespace {

// By parameter: the first node that reads it.
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

// Optimizer slots that travel beside the values.
int SlotsExchanged(const v1::JobPlan& plan) {
  if (plan.spec().sync().mode() != v1::LOCAL_SGD) return 0;
  return static_cast<int>(std::ssize(OptimizerSlotNames(plan.spec().training().optimizer())));
}

}  // namespace

absl::Status CheckChunks(const v1::JobPlan& plan) {
  const int slots = SlotsExchanged(plan);
  std::vector<int64_t> covered(plan.graph().parameters_size() * (1 + slots), 0);
  for (int c = 0; c < plan.chunks_size(); ++c) {
    const v1::PlanChunk& chunk = plan.chunks(c);
    if (chunk.shard() < 0 || chunk.shard() >= plan.shards_size() || chunk.parameter() < 0 ||
        chunk.parameter() >= plan.graph().parameters_size() || chunk.slot() < 0 ||
        chunk.slot() > slots || chunk.elements() < 1 ||
        chunk.offset() != covered[chunk.parameter() * (1 + slots) + chunk.slot()]) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan of ", plan.job(), ": chunk ", c, " is not the next part of parameter ",
                       chunk.parameter(), " on a shard of the plan: ", chunk.ShortDebugString()));
    }
    covered[chunk.parameter() * (1 + slots) + chunk.slot()] += chunk.elements();
  }
  for (size_t i = 0; i < covered.size(); ++i) {
    const v1::Parameter& parameter = plan.graph().parameters(static_cast<int>(i / (1 + slots)));
    if (covered[i] != ElementCount(parameter)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "plan of ", plan.job(), ": chunks of slot ", i % (1 + slots), " hold ", covered[i],
          " elements, parameter '", parameter.name(), "' has ", ElementCount(parameter)));
    }
  }
  return absl::OkStatus();
}

std::vector<int> ChunksByFirstUse(const v1::JobPlan& plan) {
  const std::vector<int> reader = FirstReaders(plan.graph());
  std::vector<int> order(plan.chunks_size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int c) { return reader[plan.chunks(c).parameter()]; });
  return order;
}

}  // namespace muster
