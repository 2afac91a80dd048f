#include "lib/data/dataset.h"

#include "lib/data/data_fault.h"
#include "lib/data/idx_dataset.h"
#include "lib/data/linear_dataset.h"
#include "lib/data/text_dataset.h"

namespace muster {

absl::StatusOr<std::unique_ptr<const Dataset>> Dataset::Open(const v1::DataSpec& spec,
                                                             const v1::Graph& graph) {
  switch (spec.source_case()) {
    case v1::DataSpec::kText:
      return OpenTextDataset(spec, graph);
    case v1::DataSpec::kIdx:
      return OpenIdxDataset(spec, graph);
    case v1::DataSpec::kLinear:
      return OpenLinearDataset(spec, graph);
    case v1::DataSpec::SOURCE_NOT_SET:
      break;
  }
  return DataInvalid("data", "needs one of text, idx and linear");
}

}  // namespace muster
