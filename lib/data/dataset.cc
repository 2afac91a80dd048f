#include "lib/data/dataset.h"

namespace muster {

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

}  // namespace muster
