#include "lib/data/source/open_dataset.h"

#include <utility>

#include "lib/data/data_fault.h"
#include "lib/data/source/csv_dataset.h"
#include "lib/data/source/idx_dataset.h"
#include "lib/data/source/linear_dataset.h"
#include "lib/data/source/mixture_dataset.h"
#include "lib/data/source/npy_dataset.h"
#include "lib/data/source/npz_dataset.h"
#include "lib/data/source/substitution_dataset.h"
#include "lib/data/source/synthetic_dataset.h"
#include "lib/data/source/text_dataset.h"
#include "lib/status/status.h"

namespace muster {

absl::StatusOr<std::unique_ptr<const Dataset>> OpenSource(const v1::DataSpec& spec,
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
    case v1::DataSpec::kNpz:
      return OpenNpzDataset(spec, graph, {.held_bytes_max = held_bytes_max});
    case v1::DataSpec::kCsv:
      return OpenCsvDataset(spec, graph, {.held_bytes_max = held_bytes_max});
    case v1::DataSpec::kSynthetic:
      return OpenSyntheticDataset(spec, graph);
    case v1::DataSpec::kMixture:
      return OpenMixtureDataset(spec, graph, {.held_bytes_max = held_bytes_max});
    case v1::DataSpec::kExternal:
      return DataInvalid("data.external", "only the job's program can read it");
    default:
      break;
  }
  return DataInvalid("data",
                     "needs one of text, idx, linear, mixture, npy, npz, csv and synthetic");
}

absl::StatusOr<std::unique_ptr<const Dataset>> OpenDataset(const v1::DataSpec& spec,
                                                           const v1::Graph& graph,
                                                           int64_t held_bytes_max) {
  ASSIGN_OR_RETURN(std::unique_ptr<const Dataset> source, OpenSource(spec, graph, held_bytes_max));
  return SubstituteDamaged(std::move(source), graph, spec.seed(), spec.damaged_max());
}

}  // namespace muster
