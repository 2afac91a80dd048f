#include "lib/data/dataset.h"

#include <algorithm>
#include <numeric>

namespace muster {
namespace {

constexpr int64_t kBlockBytes = int64_t{8} << 20;

}  // namespace

int64_t RowBytes(const v1::GraphInput& input) {
  int64_t elements = 1;
  for (int d = 1; d < input.shape_size(); ++d) elements *= input.shape(d);
  return elements * 4;
}

std::vector<int64_t> RowBytes(const Dataset& dataset, const v1::Graph& graph) {
  std::vector<int64_t> bytes;
  for (int i = 0; i < graph.inputs_size(); ++i) {
    const int64_t declared = RowBytes(graph.inputs(i));
    bytes.push_back(dataset.row_values(i).empty() ? declared : declared / 4);
  }
  return bytes;
}

v1::DatasetFacts FactsOf(const Dataset& dataset, const v1::DataSpec& data, const v1::Graph& graph) {
  v1::DatasetFacts facts;
  facts.set_samples(dataset.samples());
  facts.set_evaluation_samples(dataset.evaluation_samples());
  facts.set_fingerprint(dataset.fingerprint());
  for (const int64_t samples : dataset.part_samples()) facts.add_part_samples(samples);
  if (!data.shuffle().has_block()) return facts;
  int64_t bytes = dataset.mean_stored_bytes();
  if (bytes == 0) {
    const std::vector<int64_t> rows = RowBytes(dataset, graph);
    bytes = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  }
  const int64_t asked = data.shuffle().block().samples();
  const int64_t default_samples =
      std::clamp<int64_t>(kBlockBytes / std::max<int64_t>(1, bytes), 1, dataset.samples());
  facts.set_block_samples(asked > 0 ? asked : default_samples);
  return facts;
}

}  // namespace muster
