#include "lib/data/source/dataset_check.h"

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "lib/data/data_fault.h"
#include "lib/data/dataset.h"
#include "lib/data/file/data_file.h"
#include "lib/data/format/example.h"
#include "lib/data/format/tfrecord.h"
#include "lib/data/image/image_spec.h"
#include "lib/data/image_rows.h"
#include "lib/data/input_use.h"
#include "lib/data/labelled_rows.h"
#include "lib/data/source/csv_dataset.h"
#include "lib/data/source/example_rows.h"
#include "lib/data/source/idx_dataset.h"
#include "lib/data/source/images_dataset.h"
#include "lib/data/source/linear_dataset.h"
#include "lib/data/source/npy_dataset.h"
#include "lib/data/source/npz_dataset.h"
#include "lib/data/source/sample_files.h"
#include "lib/data/source/synthetic_dataset.h"
#include "lib/data/source/text_dataset.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr int kClassEntriesMax = 100'000;  // of folders that are looked at
// The beginning of a file in which features are searched.
constexpr int64_t kSearchedBytes = int64_t{1} << 20;
constexpr int kSearchedRecords = 1000;
constexpr int64_t kSearchedRecordBytesMax = int64_t{16} << 20;

using Samples = absl::StatusOr<std::optional<int64_t>>;

Samples SamplesOf(const absl::StatusOr<std::unique_ptr<const Dataset>>& dataset) {
  if (!dataset.ok()) return dataset.status();
  return (*dataset)->samples();
}

// Checks that the spec fills each input of the graph, and no others.
template <typename Inputs>
absl::Status CheckNames(const Inputs& inputs, const v1::Graph& graph, absl::string_view field) {
  for (const auto& [name, input] : inputs) {
    if (FindInput(graph, name) != nullptr) continue;
    std::vector<std::string> known;
    for (const v1::GraphInput& one : graph.inputs()) known.push_back(one.name());
    return DataInvalid(
        absl::StrCat(field, ".", name),
        absl::StrCat("the model has no such input; it reads ", absl::StrJoin(known, ", ")));
  }
  for (const v1::GraphInput& input : graph.inputs()) {
    if (inputs.contains(input.name())) continue;
    return DataInvalid(absl::StrCat(field, ".", input.name()),
                       absl::StrCat("required: how the model's ", input.name(), ", ",
                                    DescribeInput(graph, input.name()), ", is filled"));
  }
  return absl::OkStatus();
}

// Requires: the source decodes images.
HeldOut HeldOutOf(const v1::DataSpec& spec) {
  const auto has = [](const auto& source) {
    return source.holdout() > 0 || !source.eval_path().empty();
  };
  const bool has_some = has(spec.images()) || !spec.images().eval_list().empty() ||
                        has(spec.tfrecord()) || has(spec.tar());
  return has_some ? HeldOut::kSome : HeldOut::kNone;
}

absl::Status CheckImageInput(const v1::DataSpec& spec, const v1::Graph& graph,
                             absl::string_view name, absl::string_view field) {
  const v1::GraphInput* input = FindInput(graph, name);
  const bool fits = input != nullptr && input->dtype() == v1::DTYPE_F32 &&
                    input->shape_size() == 4 && (input->shape(1) == 1 || input->shape(1) == 3) &&
                    input->shape(2) > 0 && input->shape(3) > 0;
  if (fits) {
    const int height = static_cast<int>(input->shape(2)), width = static_cast<int>(input->shape(3));
    RETURN_IF_ERROR(CheckImageSpec(spec.image(), static_cast<int>(input->shape(1)), height, width));
    return CheckImageSizes(spec.image(), HeldOutOf(spec), height, width);
  }
  return DataInvalid(
      field, absl::StrCat("images are f32[-1, 1 or 3, height, width], but the model's ", name,
                          " is ", DescribeInput(graph, name)));
}

// Checks the inputs that are filled with images.
template <typename Inputs>
absl::Status CheckImageInputs(const v1::DataSpec& spec, const Inputs& inputs,
                              const v1::Graph& graph, absl::string_view field) {
  for (const auto& [name, input] : inputs) {
    if (!input.has_image()) continue;
    RETURN_IF_ERROR(CheckImageInput(spec, graph, name, absl::StrCat(field, ".", name)));
  }
  return absl::OkStatus();
}

// Checks the files to train on, and those to evaluate if there are any. `extension` is that of the
// files of a folder.
absl::Status CheckFiles(const std::string& source, const std::string& path,
                        const std::string& eval_path, absl::string_view extension,
                        SampleFileCheck check) {
  RETURN_IF_ERROR(CheckSampleFiles(path, absl::StrCat("data.", source, ".path"), extension, check));
  if (eval_path.empty()) return absl::OkStatus();
  return CheckSampleFiles(eval_path, absl::StrCat("data.", source, ".eval_path"), extension, check);
}

// Looks for an image in the folder of a class. Takes the entries that it sees from `entries_left`,
// and returns OK if there are none left.
absl::Status CheckClass(const fs::path& folder, absl::string_view field, int& entries_left) {
  std::error_code error;
  constexpr auto kFollow = fs::directory_options::follow_directory_symlink;
  fs::recursive_directory_iterator entry(folder, kFollow, error);
  if (error) return DataPathFault(field, folder.string(), error.value());
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (--entries_left <= 0) return absl::OkStatus();
    std::error_code unknown;  // of an entry that vanishes
    const bool is_hidden = entry->path().filename().string()[0] == '.';
    if (is_hidden) entry.disable_recursion_pending();
    if (!is_hidden && entry->is_regular_file(unknown)) return absl::OkStatus();
  }
  if (error) return absl::OkStatus();  // such as a cycle of links, which the workers resolve
  return DataTooSmall(field, absl::StrCat(folder.string(),
                                          ": the folder of a class has no file; remove it or fill "
                                          "it"));
}

// Checks the folders of classes. Ends at the first one that the model has no class for. Returns OK
// for folders with too many entries; the workers list them.
absl::Status CheckClasses(const std::string& path, absl::string_view field, int64_t classes) {
  std::error_code error;
  int64_t folders = 0;
  int entries_left = kClassEntriesMax;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    if (--entries_left <= 0) return absl::OkStatus();
    std::error_code unknown;  // of an entry that vanishes
    if (entry->path().filename().string()[0] == '.' || !entry->is_directory(unknown)) continue;
    if (++folders > classes) {
      return DataInvalid(field, absl::StrCat(path, ": has a folder for each of more than ", classes,
                                             " classes, and the model has ", classes,
                                             ": set model.zoo.args.classes"));
    }
    RETURN_IF_ERROR(CheckClass(entry->path(), field, entries_left));
  }
  if (error) return DataPathFault(field, path, error.value());
  if (folders > 0) return absl::OkStatus();
  return DataTooSmall(field, absl::StrCat(path,
                                          ": holds no folder; it needs a folder of images for "
                                          "each class, or data.images.list"));
}

absl::Status CheckImages(const v1::DataSpec& spec, const v1::Graph& graph) {
  const v1::ImagesData& images = spec.images();
  RETURN_IF_ERROR(LabelledRows::Check(graph, "data.images"));
  RETURN_IF_ERROR(CheckImageInput(spec, graph, "input", "data.images"));
  if (!HasInput(graph, "target", v1::DTYPE_I32, {-1})) {
    return DataInvalid("data.images",
                       absl::StrCat("classes are i32[-1], but the model's target is ",
                                    DescribeInput(graph, "target")));
  }
  const InputUse target = LabelledRows(graph).target_use();
  const auto check = [&](const std::string& path, const std::string& list, bool is_evaluation) {
    if (!list.empty()) return CheckImageList(images, target, is_evaluation);
    return CheckClasses(path, is_evaluation ? "data.images.eval_path" : "data.images.path",
                        target.limit);
  };
  RETURN_IF_ERROR(check(images.path(), images.list(), /*is_evaluation=*/false));
  if (images.eval_path().empty() && images.eval_list().empty()) return absl::OkStatus();
  return check(images.eval_path(), images.eval_list(), /*is_evaluation=*/true);
}

// Returns DATA_INVALID for a feature that none of the first records has. Workers search further,
// because lists of variable size may be absent from many records: such a list fails here only if
// all was searched that a worker searches. `is_only_file`: no other file follows.
absl::Status CheckFeatures(const DataFile& file, absl::string_view field, const ExampleRows& rows,
                           bool is_only_file) {
  TfrecordScanner scanner(file, field);
  std::vector<bool> seen(rows.features().size());
  std::string first;
  absl::Status damage;
  int records = 0;
  bool is_end = false;
  for (; records < kSearchedRecords; ++records) {
    ASSIGN_OR_RETURN(const bool is_record, scanner.Next());
    is_end = !is_record;
    if (is_end || (records > 0 && scanner.offset() > kSearchedBytes)) break;
    if (scanner.bytes() > kSearchedRecordBytesMax) return absl::OkStatus();
    const auto example = scanner.Data(TfrecordScanner::Check::kNone);
    RETURN_IF_ERROR(example.status());
    if (first.empty()) first = DescribeFeatures(*example).value_or("");
    if (const absl::Status status = rows.Note(*example, seen); !status.ok()) {
      damage = DataDamaged(field, file.path(), records, scanner.offset() - kTfrecordHeaderBytes,
                           status.message());
    }
  }
  if (records == 0) return absl::OkStatus();  // a shard may be empty
  if (first.empty()) return damage;
  // Workers search the first records of all files together, so another file may have the feature.
  const bool is_all = is_only_file && (is_end || records == kSearchedRecords);
  for (size_t i = 0; i < seen.size(); ++i) {
    const ExampleRows::WantedFeature& feature = rows.features()[i];
    if (seen[i] || (!feature.is_needed && !is_all)) continue;
    return DataInvalid(feature.field,
                       absl::StrCat(file.path(), ": no feature '", feature.name, "' in the first ",
                                    records, " records; the first one has: ", first));
  }
  return absl::OkStatus();
}

absl::Status CheckTfrecord(const v1::DataSpec& spec, const v1::Graph& graph) {
  const v1::TfrecordData& tfrecord = spec.tfrecord();
  RETURN_IF_ERROR(CheckNames(tfrecord.inputs(), graph, "data.tfrecord.inputs"));
  RETURN_IF_ERROR(CheckImageInputs(spec, tfrecord.inputs(), graph, "data.tfrecord.inputs"));
  // No row is filled, so nothing decodes images.
  const auto no_images = [](const v1::ImageSpec&, uint64_t, int, int, int) {
    return std::unique_ptr<const ImageRows>();
  };
  ASSIGN_OR_RETURN(const std::unique_ptr<const ExampleRows> rows,
                   ExampleRows::Create(spec, graph, no_images));
  const auto check = [&](const DataFile& file, absl::string_view field) -> absl::Status {
    RETURN_IF_ERROR(CheckTfrecordStart(file, field));
    return CheckFeatures(file, field, *rows, file.path() == tfrecord.path());
  };
  return CheckFiles("tfrecord", tfrecord.path(), tfrecord.eval_path(), "", check);
}

absl::Status CheckTar(const v1::DataSpec& spec, const v1::Graph& graph) {
  const v1::TarData& tar = spec.tar();
  RETURN_IF_ERROR(CheckNames(tar.inputs(), graph, "data.tar.inputs"));
  RETURN_IF_ERROR(CheckImageInputs(spec, tar.inputs(), graph, "data.tar.inputs"));
  return CheckFiles("tar", tar.path(), tar.eval_path(), ".tar", CheckTarStart);
}

Samples CheckNpz(const v1::DataSpec& spec, const v1::Graph& graph, int64_t held_bytes_max) {
  ASSIGN_OR_RETURN(const auto file, DataFile::Open(spec.npz().path(), "data.npz.path"));
  RETURN_IF_ERROR(CheckZipStart(*file, "data.npz.path"));
  return SamplesOf(OpenNpzDataset(spec, graph, {.held_bytes_max = held_bytes_max}));
}

absl::Status CheckCsv(const v1::CsvData& csv, const v1::Graph& graph, int64_t held_bytes_max) {
  RETURN_IF_ERROR(CheckNames(csv.inputs(), graph, "data.csv.inputs"));
  // Workers take the columns and the separator of all files from the first one.
  bool has_columns = false;
  const auto check = [&](const DataFile& file, absl::string_view field) -> absl::Status {
    RETURN_IF_ERROR(CheckTextStart(file, field));
    if (has_columns || file.bytes() == 0) return absl::OkStatus();
    has_columns = true;
    return CheckCsvColumns(csv, graph, file, std::string(field), held_bytes_max);
  };
  return CheckFiles("csv", csv.path(), csv.eval_path(), "", check);
}

// Returns the error of a part with the field's path in the mixture: data.text.path becomes
// data.mixture.parts[1].data.text.path.
absl::Status OfPart(const absl::Status& status, int part) {
  const std::vector<FieldFault> faults = FaultsOf(status);
  if (faults.empty()) return status;
  return AtField(WithReason(absl::Status(status.code(), faults[0].description), ReasonOf(status)),
                 absl::StrCat("data.mixture.parts[", part, "].", faults[0].field));
}

absl::Status CheckMixture(const v1::MixtureData& mixture, const v1::Graph& graph,
                          int64_t held_bytes_max) {
  for (int i = 0; i < mixture.parts_size(); ++i) {
    const Samples part = CheckDataset(mixture.parts(i).data(), graph, held_bytes_max);
    if (!part.ok()) return OfPart(part.status(), i);
  }
  return absl::OkStatus();
}

Samples WithoutCount(const absl::Status& status) {
  if (!status.ok()) return status;
  return std::nullopt;
}

}  // namespace

Samples CheckDataset(const v1::DataSpec& spec, const v1::Graph& graph, int64_t held_bytes_max) {
  switch (spec.source_case()) {
    case v1::DataSpec::kText:
      return SamplesOf(OpenTextDataset(spec, graph, held_bytes_max));
    case v1::DataSpec::kIdx:
      return SamplesOf(OpenIdxDataset(spec, graph, held_bytes_max));
    case v1::DataSpec::kLinear:
      return SamplesOf(OpenLinearDataset(spec, graph));
    case v1::DataSpec::kNpy:
      return SamplesOf(OpenNpyDataset(spec, graph, held_bytes_max));
    case v1::DataSpec::kSynthetic:
      return SamplesOf(OpenSyntheticDataset(spec, graph));
    case v1::DataSpec::kImages:
      return WithoutCount(CheckImages(spec, graph));
    case v1::DataSpec::kTfrecord:
      return WithoutCount(CheckTfrecord(spec, graph));
    case v1::DataSpec::kTar:
      return WithoutCount(CheckTar(spec, graph));
    case v1::DataSpec::kNpz:
      return CheckNpz(spec, graph, held_bytes_max);
    case v1::DataSpec::kCsv:
      return WithoutCount(CheckCsv(spec.csv(), graph, held_bytes_max));
    case v1::DataSpec::kMixture:
      return WithoutCount(CheckMixture(spec.mixture(), graph, held_bytes_max));
    case v1::DataSpec::kExternal:
      return DataInvalid("data.external", "only the job's program can read it");
    case v1::DataSpec::SOURCE_NOT_SET:
      break;
  }
  return DataInvalid("data", "names no source");
}

}  // namespace muster
