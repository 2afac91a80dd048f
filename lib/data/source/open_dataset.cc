#include "lib/data/source/open_dataset.h"

#include <utility>

#include "lib/data/data_fault.h"
#include "lib/data/source/csv_dataset.h"
#include "lib/data/source/idx_dataset.h"
#include "lib/data/source/images_dataset.h"
#include "lib/data/source/linear_dataset.h"
#include "lib/data/source/mixture_dataset.h"
#include "lib/data/source/npy_dataset.h"
#include "lib/data/source/npz_dataset.h"
#include "lib/data/source/substitution_dataset.h"
#include "lib/data/source/synthetic_dataset.h"
#include "lib/data/source/tar_dataset.h"
#include "lib/data/source/text_dataset.h"
#include "lib/data/source/tfrecord_dataset.h"
#include "lib/status/status.h"

namespace muster {

namespace {

absl::StatusOr<std::unique_ptr<const ImageRows>> RefuseImages(const v1::ImageSpec&, uint64_t, int,
                                                              int, int) {
  return absl::FailedPreconditionError("this program cannot decode images; a worker can");
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Dataset>> OpenSource(const v1::DataSpec& spec,
                                                          const v1::Graph& graph,
                                                          const DataOptions& options) {
  const MakeImageRows make_images = options.make_images ? options.make_images : RefuseImages;
  switch (spec.source_case()) {
    case v1::DataSpec::kText:
      return OpenTextDataset(spec, graph, options.held_bytes_max);
    case v1::DataSpec::kIdx:
      return OpenIdxDataset(spec, graph, options.held_bytes_max);
    case v1::DataSpec::kLinear:
      return OpenLinearDataset(spec, graph);
    case v1::DataSpec::kNpy:
      return OpenNpyDataset(spec, graph, options.held_bytes_max);
    case v1::DataSpec::kNpz:
      return OpenNpzDataset(spec, graph, options);
    case v1::DataSpec::kCsv:
      return OpenCsvDataset(spec, graph, options);
    case v1::DataSpec::kImages:
      return OpenImagesDataset(spec, graph, options, make_images);
    case v1::DataSpec::kTfrecord:
      return OpenTfrecordDataset(spec, graph, options, make_images);
    case v1::DataSpec::kTar:
      return OpenTarDataset(spec, graph, options, make_images);
    case v1::DataSpec::kSynthetic:
      return OpenSyntheticDataset(spec, graph);
    case v1::DataSpec::kMixture:
      return OpenMixtureDataset(spec, graph, options);
    case v1::DataSpec::kExternal:
      return DataInvalid("data.external", "only the job's program can read it");
    case v1::DataSpec::SOURCE_NOT_SET:
      break;
  }
  return DataInvalid(
      "data",
      "needs one of text, idx, linear, npy, npz, csv, images, tfrecord, tar, mixture "
      "and synthetic");
}

absl::StatusOr<std::unique_ptr<const Dataset>> OpenDataset(const v1::DataSpec& spec,
                                                           const v1::Graph& graph,
                                                           const DataOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<const Dataset> source, OpenSource(spec, graph, options));
  return SubstituteDamaged(std::move(source), graph, spec.seed(), spec.damaged_max());
}

}  // namespace muster
