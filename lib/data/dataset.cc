#include "lib/data/dataset.h"

#include "lib/data/data_fault.h"
#include "lib/data/idx_dataset.h"
#include "lib/data/linear_dataset.h"
#include "lib/data/npy_dataset.h"
#include "lib/data/synthetic_dataset.h"
#include "lib/data/text_dataset.h"

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
    bytes.push_back(dataset.row_values(i) == nullptr ? declared : declared / 4);
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<const Dataset>> Dataset::Open(const v1::DataSpec& spec,
                                                             const v1::Graph& graph,
                                                             int64_t held_bytes_max) {
  switch (spec.source_case()) {
    case v1::DataSpec::kText:
      return OpenTextDataset(spec, graph, held_bytes_max);
    case v1::DataSpec::kIdx:
      return OpenIdxDataset(spec, graph, held_bytes_max);
    case v1::DataSpec::kLinear:
      return OpenLinearDataset(spec, graph);
    case v1::DataSpec::kNpy:
      return OpenNpyDataset(spec, graph, held_bytes_max);
    case v1::DataSpec::kSynthetic:
      return OpenSyntheticDataset(spec, graph);
    case v1::DataSpec::kExternal:
      return DataInvalid("data.external", "only the job's program can read it");
    case v1::DataSpec::SOURCE_NOT_SET:
      break;
  }
  return DataInvalid("data", "needs one of text, idx, linear, npy and synthetic");
}

}  // namespace muster
