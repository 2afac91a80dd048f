#include "cli/data/inspection.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "cli/data/source_inspection.h"
#include "lib/data/data_fault.h"
#include "lib/data/file/data_file.h"
#include "lib/data/file/file_list.h"
#include "lib/data/format/compression.h"
#include "lib/data/format/npy.h"
#include "lib/data/format/npz.h"
#include "lib/data/format/tfrecord.h"
#include "lib/job/spec_writer.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "lib/text/byte_size.h"

namespace muster::cli {
namespace {

constexpr int64_t kImageBytesMax = 64 << 20;
constexpr int kValuesShown = 8;
constexpr size_t kFoldersShown = 3;
constexpr size_t kSampleFilesMin = 3;  // a model rarely has as many inputs, each with a file
constexpr int64_t kBatchSize = 32;     // of the proposal, if there are as many samples

using Files = std::vector<ListedFile>;

template <typename T>
std::string FirstValues(absl::Span<const std::byte> data, size_t shown) {
  std::vector<std::string> values;
  for (size_t i = 0; i < std::min(shown, data.size() / sizeof(T)); ++i) {
    T value;
    std::memcpy(&value, data.data() + i * sizeof(T), sizeof(T));
    values.push_back(absl::StrCat(value));
  }
  return absl::StrJoin(values, ", ");
}

std::string FirstValues(const NpyFile& file) {
  switch (file.header().type) {
    case NpyType::kF32:
      return FirstValues<float>(file.data(), kValuesShown);
    case NpyType::kF64:
      return FirstValues<double>(file.data(), kValuesShown);
    case NpyType::kI32:
      return FirstValues<int32_t>(file.data(), kValuesShown);
    case NpyType::kI64:
      return FirstValues<int64_t>(file.data(), kValuesShown);
    case NpyType::kU8:
      return FirstValues<uint8_t>(file.data(), kValuesShown);
  }
  return "";
}

std::string DescribeArray(const NpyHeader& header) {
  return absl::StrCat(NpyTypeName(header.type), "[", absl::StrJoin(header.shape, ", "), "]");
}

int64_t SamplesOf(const NpyHeader& header) { return header.shape.empty() ? 0 : header.shape[0]; }

absl::StatusOr<SourceInspection> InspectNpy(const Files& files) {
  SourceInspection inspection{.text = absl::StrCat(DescribeFiles("npy", files), "\n"),
                              .samples = INT64_MAX};
  auto& inputs = *inspection.spec.mutable_npy()->mutable_inputs();
  const size_t shown = std::min<size_t>(files.size(), limits::kGraphInputsMax);
  for (const ListedFile& listed : absl::MakeSpan(files).first(shown)) {
    ASSIGN_OR_RETURN(const NpyFile file, NpyFile::Open(listed.path, kInspectedField));
    absl::StrAppend(&inspection.text, listed.path, ": ", DescribeArray(file.header()),
                    "; first: ", FirstValues(file), "\n");
    inspection.samples = std::min(inspection.samples, SamplesOf(file.header()));
    inputs[std::filesystem::path(listed.path).stem().string()] = listed.path;
  }
  if (shown < files.size()) {
    absl::StrAppend(&inspection.text, "and ", files.size() - shown, " more\n");
    inspection.spec.Clear();
  }
  if (files.size() >= kSampleFilesMin) {
    absl::StrAppend(&inspection.text, "If each file is a sample: muster data convert ",
                    std::filesystem::path(files[0].path).parent_path().string(), " samples.npy\n");
  }
  return inspection;
}

absl::StatusOr<SourceInspection> InspectNpz(const std::string& path) {
  ASSIGN_OR_RETURN(const NpzFile file, NpzFile::Open(path, kInspectedField));
  SourceInspection inspection{
      .text = absl::StrCat("npz: ", Count(std::ssize(file.members()), "array"), "\n"),
      .samples = INT64_MAX};
  v1::NpzData& npz = *inspection.spec.mutable_npz();
  npz.set_path(path);
  for (const ZipMember& member : file.members()) {
    const std::string name(absl::StripSuffix(member.name, ".npy"));
    ASSIGN_OR_RETURN(const NpzFile::Array array, file.Find(name, kInspectedField));
    absl::StrAppend(&inspection.text, "  ", absl::Utf8SafeCEscape(name), ": ",
                    DescribeArray(array.header), "\n");
    inspection.samples = std::min(inspection.samples, SamplesOf(array.header));
    (*npz.mutable_inputs())[name] = name;
  }
  return inspection;
}

// Returns the files below a folder, with names relative to it.
absl::StatusOr<Files> FilesBelow(const std::string& folder) {
  Files files;
  RETURN_IF_ERROR(VisitFiles(folder, kInspectedField, {.is_recursive = true},
                             [&](absl::string_view name, int64_t bytes, int64_t) {
                               files.push_back({.path = std::string(name), .bytes = bytes});
                               return absl::OkStatus();
                             }));
  return files;
}

absl::StatusOr<std::string> DescribeImageFile(const std::string& path,
                                              const InspectOptions& options) {
  ASSIGN_OR_RETURN(const auto file, DataFile::Open(path, kInspectedField));
  ASSIGN_OR_RETURN(const std::string bytes, file->ReadFirst(kImageBytesMax));
  const std::string image = DescribeImage(options, bytes);
  return image.empty() ? "" : absl::StrCat(file->bytes(), " bytes, ", image);
}

// Looks at the first file of each class. Returns nullopt if none is an image.
absl::StatusOr<std::optional<SourceInspection>> InspectImages(
    const std::string& path, const std::vector<std::string>& classes,
    const InspectOptions& options) {
  int64_t files_of_all = 0, bytes = 0, least = INT64_MAX, most = 0;
  std::vector<std::string> images, faults;
  for (const std::string& name : classes) {
    const std::string folder = absl::StrCat(path, absl::EndsWith(path, "/") ? "" : "/", name);
    ASSIGN_OR_RETURN(const Files files, FilesBelow(folder));
    files_of_all += std::ssize(files);
    least = std::min<int64_t>(least, files.size());
    most = std::max<int64_t>(most, files.size());
    for (const ListedFile& file : files) bytes += file.bytes;
    if (files.empty()) {
      faults.push_back(absl::StrCat("  ", folder, ": has no file; a job needs one\n"));
      continue;
    }
    const ListedFile& first = *std::ranges::min_element(files, {}, &ListedFile::path);
    const std::string first_path = absl::StrCat(folder, "/", first.path);
    ASSIGN_OR_RETURN(const std::string image, DescribeImageFile(first_path, options));
    if (image.empty()) {
      faults.push_back(absl::StrCat("  ", first_path, ": is no image; a job fails at it\n"));
    } else {
      images.push_back(absl::StrCat("  ", first_path, ": ", image, "\n"));
    }
  }
  if (images.empty()) return std::nullopt;
  images.resize(std::min(images.size(), kFoldersShown));
  const size_t others = faults.size() - std::min(faults.size(), kFoldersShown);
  faults.resize(faults.size() - others);
  SourceInspection inspection{
      .text = absl::StrCat("images: ", Count(std::ssize(classes), "class folder"), " of ", least,
                           " to ", Count(most, "file"), ", ", FormatBytes(bytes), "\n",
                           absl::StrJoin(images, ""), absl::StrJoin(faults, "")),
      .samples = files_of_all};
  if (others > 0) {
    absl::StrAppend(&inspection.text, "  and ", others, " more folders begin with no image\n");
  }
  inspection.spec.mutable_images()->set_path(path);
  SetUsualTransforms(*inspection.spec.mutable_image());
  return inspection;
}

// Returns whether a file begins with the header of a record.
bool IsTfrecord(const DataFile& file) {
  TfrecordScanner scanner(file, kInspectedField);
  return scanner.Next().value_or(false);
}

absl::StatusOr<SourceInspection> InspectOther(const std::string& path, const Files& files,
                                              const InspectOptions& options) {
  const std::string& first = files[0].path;
  ASSIGN_OR_RETURN(const auto file, DataFile::Open(first, kInspectedField));
  if (IsTfrecord(*file)) return InspectTfrecord(path, files, options);
  ASSIGN_OR_RETURN(const std::string image, DescribeImageFile(first, options));
  if (!image.empty()) {
    return SourceInspection{.text = absl::StrCat(first, ": ", image,
                                                 "\ndata.images reads a folder with a folder for "
                                                 "each class, or a list of images\n")};
  }
  // The source idx reads MNIST's files as they are.
  if (!absl::EndsWith(first, "ubyte.gz"))
    RETURN_IF_ERROR(CheckUncompressed(*file, kInspectedField));
  return DataInvalid(
      kInspectedField,
      absl::StrCat(first,
                   ": the format is unknown; known are .tar, .npy, .npz, .csv, .tsv, TFRecord, and "
                   "a folder with a folder of images for each class. data.idx reads MNIST's files, "
                   "and data.text reads any file as bytes"));
}

absl::StatusOr<SourceInspection> InspectFiles(const std::string& path, const Files& files,
                                              const InspectOptions& options) {
  // Files of one kind; a folder may also hold a README.
  const auto of_kind = [&](std::initializer_list<absl::string_view> extensions) {
    Files kind;
    for (const ListedFile& file : files) {
      const bool is_one = std::ranges::any_of(extensions, [&](absl::string_view extension) {
        return absl::EndsWithIgnoreCase(file.path, extension);
      });
      if (is_one) kind.push_back(file);
    }
    return kind;
  };
  // Workers read all files of a folder, except for archives, so other files need a pattern.
  const auto pattern_of = [&](const Files& kind) {
    if (kind.size() == files.size()) return path;
    const std::filesystem::path one(kind[0].path);
    return (one.parent_path() / absl::StrCat("*", one.extension().string())).string();
  };
  if (const Files tar = of_kind({".tar"}); !tar.empty()) {
    std::error_code error;
    const bool is_folder = std::filesystem::is_directory(path, error);
    return InspectTar(is_folder ? path : pattern_of(tar), tar, options);
  }
  if (const Files tar = of_kind({".tar.gz", ".tgz", ".tar.zst"}); !tar.empty()) {
    return InspectTar(path, tar, options);
  }
  if (const Files npz = of_kind({".npz"}); !npz.empty()) return InspectNpz(npz[0].path);
  if (const Files npy = of_kind({".npy"}); !npy.empty()) return InspectNpy(npy);
  for (const absl::string_view extension : {".csv", ".tsv"}) {
    if (const Files csv = of_kind({extension}); !csv.empty()) {
      return InspectCsv(pattern_of(csv), csv);
    }
  }
  return InspectOther(path, files, options);
}

absl::StatusOr<SourceInspection> InspectPath(const std::string& path,
                                             const InspectOptions& options) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    ASSIGN_OR_RETURN(const std::vector<std::string> folders, ListFolders(path, kInspectedField));
    // A folder of folders may have a list of its classes beside them.
    ASSIGN_OR_RETURN(auto images, InspectImages(path, folders, options));
    if (images) return *std::move(images);
  }
  ASSIGN_OR_RETURN(const Files files, ListFiles(path, kInspectedField));
  return InspectFiles(path, files, options);
}

}  // namespace

void SetUsualTransforms(v1::ImageSpec& image) {
  image.add_train()->mutable_random_resized_crop()->set_size(224);
  image.add_train()->mutable_random_flip();
  image.add_evaluate()->mutable_resize()->set_size(256);
  image.add_evaluate()->mutable_center_crop()->set_size(224);
}

std::string DescribeImage(const InspectOptions& options, absl::string_view bytes) {
  return options.describe_image({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

std::string Count(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string DescribeFiles(absl::string_view format, absl::Span<const ListedFile> files) {
  int64_t bytes = 0;
  for (const ListedFile& file : files) bytes += file.bytes;
  return absl::StrCat(format, ": ", Count(std::ssize(files), "file"), ", ", FormatBytes(bytes));
}

absl::StatusOr<Inspection> Inspect(const std::string& path, const InspectOptions& options) {
  ASSIGN_OR_RETURN(SourceInspection found, InspectPath(path, options));
  if (found.spec.source_case() == v1::DataSpec::SOURCE_NOT_SET) {
    return Inspection{.text = std::move(found.text)};
  }
  v1::JobSpec job;
  *job.mutable_data() = std::move(found.spec);
  job.mutable_data()->set_batch_size(std::clamp<int64_t>(found.samples, 1, kBatchSize));
  return Inspection{.text = std::move(found.text), .section = WriteSpec(job)};
}

}  // namespace muster::cli
