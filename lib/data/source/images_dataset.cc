#include "lib/data/source/images_dataset.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "lib/data/data_fault.h"
#include "lib/data/file/data_file.h"
#include "lib/data/file/file_list.h"
#include "lib/data/kept_memory.h"
#include "lib/data/labelled_rows.h"
#include "lib/data/stage_times.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kImageFileBytesMax = 1 << 30;
constexpr int64_t kListBytesMax = int64_t{8} << 30;
constexpr int64_t kListBytesChecked = int64_t{1} << 20;
constexpr int kClassesInMessage = 5;

uint64_t HashOf(absl::string_view text, uint64_t hash = 0xcbf29ce484222325) {
  // FNV-1a, and the finish of SplitMix64, because FNV's high bits depend little on the last bytes.
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

uint64_t Mixed(uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

// Paths and classes of images, in the order of samples. Names are relative to a folder, because
// millions of them begin alike.
class ImageTable {
 public:
  void Add(absl::string_view name, int32_t label) {
    starts_.push_back(std::ssize(names_));
    names_.append(name.data(), name.size());
    labels_.push_back(label);
  }

  int64_t size() const { return std::ssize(labels_); }
  absl::string_view name(int64_t i) const {
    const int64_t end = i + 1 < size() ? starts_[i + 1] : std::ssize(names_);
    return absl::string_view(names_).substr(starts_[i], end - starts_[i]);
  }
  int32_t label(int64_t i) const { return labels_[i]; }
  int64_t held_bytes() const { return std::ssize(names_) + 12 * size(); }
  void Trim() {
    names_.shrink_to_fit();
    starts_.shrink_to_fit();
    labels_.shrink_to_fit();
  }

 private:
  std::string names_;
  std::vector<int64_t> starts_;
  std::vector<int32_t> labels_;
};

// The images of one path.
struct LabelledFiles {
  std::string source;              // that the job names: a folder or a list
  std::string folder;              // where paths begin
  std::string field;               // that errors name
  std::vector<std::string> names;  // of the folders, by label; empty for a list
  ImageTable images;
  int64_t classes = 0;
  int64_t last_class_line = 0;  // the first line of a list with the class of the largest number
  uint64_t fingerprint = HashOf("");

  std::string path(int64_t i) const {
    const absl::string_view name = images.name(i);
    const std::string label = names.empty() ? "" : absl::StrCat(names[images.label(i)], "/");
    if (folder.empty() || (names.empty() && absl::StartsWith(name, "/"))) {
      return absl::StrCat(label, name);
    }
    return absl::StrCat(folder, absl::EndsWith(folder, "/") ? "" : "/", label, name);
  }

  void Count(absl::string_view name, int64_t bytes, int32_t label) {
    const std::string size_and_label =
        absl::StrCat(absl::string_view("\0", 1), bytes, " ", label, "\n");
    fingerprint = HashOf(size_and_label, HashOf(name, fingerprint));
  }
};

// Adds the files of one class in the order of their names.
absl::Status AddClass(LabelledFiles& to, int32_t label, int64_t held_bytes_max) {
  const std::string folder = absl::StrCat(to.folder, "/", to.names[label]);
  std::string names;
  struct Found {
    int64_t start;
    int32_t length;
    int64_t bytes;
  };
  std::vector<Found> found;
  RETURN_IF_ERROR(VisitFiles(
      folder, to.field, {.is_recursive = true},
      [&](absl::string_view name, int64_t bytes, int64_t) {
        found.push_back({std::ssize(names), static_cast<int32_t>(name.size()), bytes});
        names.append(name.data(), name.size());
        const int64_t held = to.images.held_bytes() + std::ssize(names) + 12 * std::ssize(found);
        return held > held_bytes_max ? DataTooLarge(to.field, to.folder, held_bytes_max)
                                     : absl::OkStatus();
      }));
  if (found.empty()) {
    return DataInvalid(to.field, absl::StrCat(folder, ": the folder of class ", label,
                                              " has no file; remove it or fill it"));
  }
  const auto name_of = [&](const Found& file) {
    return absl::string_view(names).substr(file.start, file.length);
  };
  std::sort(found.begin(), found.end(),
            [&](const Found& a, const Found& b) { return name_of(a) < name_of(b); });
  for (const Found& file : found) {
    to.images.Add(name_of(file), label);
    to.Count(name_of(file), file.bytes, label);
  }
  return absl::OkStatus();
}

absl::StatusOr<LabelledFiles> ReadFolders(const std::string& folder, absl::string_view field,
                                          int64_t held_bytes_max) {
  LabelledFiles files{.source = folder, .folder = folder, .field = std::string(field)};
  ASSIGN_OR_RETURN(files.names, ListFolders(folder, field));
  if (files.names.empty()) {
    return DataInvalid(field, absl::StrCat(folder, ": has no folder; each class needs one"));
  }
  files.classes = std::ssize(files.names);
  for (int32_t label = 0; label < files.classes; ++label) {
    files.Count(files.names[label], 0, label);
    RETURN_IF_ERROR(AddClass(files, label, held_bytes_max));
  }
  files.images.Trim();
  return files;
}

// Divides "PATH<separator>CLASS". The class comes last, so a path may contain spaces. Returns the
// fault, or "".
std::string ParseListLine(absl::string_view line, absl::string_view& path, int32_t& label) {
  const size_t end = line.find_last_of("\t, ");
  if (end == absl::string_view::npos) return "has no class; a line is: PATH CLASS";
  path = line.substr(0, end);
  while (!path.empty() && absl::StrContains("\t, ", path.back())) path.remove_suffix(1);
  if (path.empty()) return "has no path; a line is: PATH CLASS";
  if (!absl::SimpleAtoi(line.substr(end + 1), &label)) {
    return absl::StrCat("has the class '", absl::CHexEscape(line.substr(end + 1).substr(0, 40)),
                        "', which is no number");
  }
  return label < 0 ? absl::StrCat("has the class ", label, ", which is below 0") : "";
}

absl::Status AddLine(LabelledFiles& to, absl::string_view line, int64_t number) {
  absl::string_view path;
  int32_t label = 0;
  const std::string fault = ParseListLine(line, path, label);
  if (!fault.empty()) return absl::InvalidArgumentError(fault);
  to.images.Add(path, label);
  to.Count(path, 0, label);
  if (label >= to.classes) {
    to.classes = int64_t{label} + 1;
    to.last_class_line = number;
  }
  return absl::OkStatus();
}

// How much of a list is read and held.
struct ListLimits {
  int64_t held_bytes_max = std::numeric_limits<int64_t>::max();
  int64_t read_bytes_max = kListBytesMax;  // a line that goes on after these bytes is not read
};

absl::StatusOr<LabelledFiles> ReadList(const std::string& list, const std::string& folder,
                                       absl::string_view field, const ListLimits& limits) {
  LabelledFiles files{.source = list, .folder = folder, .field = std::string(field)};
  ASSIGN_OR_RETURN(const auto file, DataFile::Open(list, field));
  const int64_t bytes = std::min(file->bytes(), limits.read_bytes_max);
  if (file->bytes() > kListBytesMax) return DataTooLarge(field, list, kListBytesMax);
  std::string rest;  // a line that the last piece has begun
  std::vector<char> piece(1 << 20);
  int64_t number = 0;
  const auto add = [&](absl::string_view line) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) return absl::OkStatus();
    const absl::Status added = AddLine(files, line, number);
    if (!added.ok()) {
      const absl::string_view remedy = number == 1 ? "; remove the line if it is a header" : "";
      return DataInvalid(field,
                         absl::StrCat(list, ": line ", number, " ", added.message(), remedy));
    }
    if (files.images.held_bytes() <= limits.held_bytes_max) return absl::OkStatus();
    return DataTooLarge(field, list, limits.held_bytes_max);
  };
  for (int64_t at = 0; at < bytes;) {
    auto* const to = reinterpret_cast<std::byte*>(piece.data());
    const auto size = std::min<int64_t>(std::ssize(piece), bytes - at);
    ASSIGN_OR_RETURN(const int64_t got, file->ReadSome(at, absl::MakeSpan(to, size)));
    if (got == 0) break;
    at += got;
    absl::string_view text(piece.data(), got);
    for (size_t end; (end = text.find('\n')) != absl::string_view::npos;) {
      rest.append(text.data(), end);
      RETURN_IF_ERROR(add(rest));
      rest.clear();
      text.remove_prefix(end + 1);
    }
    rest.append(text.data(), text.size());
    if (rest.size() > piece.size()) {
      return DataInvalid(field, absl::StrCat(list, ": line ", number + 1, " is longer than ",
                                             piece.size(), " bytes"));
    }
  }
  if (!rest.empty() && bytes == file->bytes()) RETURN_IF_ERROR(add(rest));
  if (files.images.size() == 0) {
    return DataTooSmall(field, absl::StrCat(list, ": names no image"));
  }
  files.images.Trim();
  return files;
}

class ImagesDataset : public Dataset {
 public:
  // `training` and `held_out` are numbers of images of `files`. Empty: all, and none. The images of
  // `evaluation` are held out, if there is one.
  ImagesDataset(LabelledFiles files, std::vector<uint32_t> training, std::vector<uint32_t> held_out,
                std::optional<LabelledFiles> evaluation, LabelledRows rows,
                std::unique_ptr<const ImageRows> maker, int64_t pixels)
      : files_(std::move(files)),
        training_(std::move(training)),
        held_out_(std::move(held_out)),
        evaluation_(std::move(evaluation)),
        rows_(std::move(rows)),
        maker_(std::move(maker)),
        pixels_(pixels) {}

  int64_t samples() const override {
    return training_.empty() ? files_.images.size() : std::ssize(training_);
  }
  int64_t evaluation_samples() const override {
    return evaluation_ ? evaluation_->images.size() : std::ssize(held_out_);
  }

  bool is_slow() const override { return true; }

  std::string fingerprint() const override {
    const uint64_t held_out = evaluation_ ? evaluation_->fingerprint : held_out_.size();
    return absl::StrFormat("images:%016x:%016x", files_.fingerprint, held_out);
  }

  absl::Span<const kernels::ByteValues> row_values(int input) const override {
    if (input != rows_.input_number()) return {};
    return maker_->values();
  }

  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    rows_.CheckSizes(rows, samples.size(), pixels_, sizeof(int32_t));
    for (size_t row = 0; row < samples.size(); ++row) {
      const int64_t sample = samples[row].sample;
      CHECK(0 <= sample && sample < this->samples()) << sample;
      const int64_t image = training_.empty() ? sample : training_[sample];
      RETURN_IF_ERROR(Fill(files_, image, &samples[row], row, rows));
    }
    return absl::OkStatus();
  }

  absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const override {
    rows_.CheckSizes(rows, count, pixels_, sizeof(int32_t));
    CHECK(0 <= first && 0 <= count && count <= evaluation_samples() - first)
        << first << " + " << count << " of " << evaluation_samples();
    for (int64_t row = 0; row < count; ++row) {
      const int64_t image = evaluation_ ? first + row : held_out_[first + row];
      RETURN_IF_ERROR(Fill(evaluation_ ? *evaluation_ : files_, image, nullptr, row, rows));
    }
    return absl::OkStatus();
  }

 private:
  // Fills one row. `ref` is null for an evaluation.
  absl::Status Fill(const LabelledFiles& from, int64_t image, const SampleRef* ref, size_t row,
                    Rows rows) const {
    if (!rows_.target(rows).empty()) {
      const int32_t label = from.images.label(image);
      std::memcpy(rows_.target(rows).data() + row * sizeof(label), &label, sizeof(label));
    }
    if (rows_.input(rows).empty()) return absl::OkStatus();
    const std::string path = from.path(image);
    thread_local std::vector<std::byte> bytes;
    const absl::Cleanup free = [] { FreeIfLarge(bytes); };
    RETURN_IF_ERROR(ReadFile(path, from.field, image, bytes));
    const auto to = absl::MakeSpan(
        reinterpret_cast<uint8_t*>(rows_.input(rows).data()) + row * pixels_, pixels_);
    const absl::Status made =
        ref != nullptr ? maker_->Training(bytes, *ref, to) : maker_->Evaluation(bytes, to);
    if (!absl::IsInvalidArgument(made)) return made;
    return DataDamaged(from.field, path, image, 0, made.message());
  }

  static absl::Status ReadFile(const std::string& path, const std::string& field, int64_t image,
                               std::vector<std::byte>& bytes) {
    std::shared_ptr<const DataFile> file;
    {
      const StageScope scope(InputStage::kOpen);
      ASSIGN_OR_RETURN(file, DataFile::Open(path, field));
    }
    if (file->bytes() > kImageFileBytesMax) {
      return DataDamaged(
          field, path, image, 0,
          absl::StrCat("has ", file->bytes(), " bytes; an image has at most ", kImageFileBytesMax));
    }
    const StageScope scope(InputStage::kRead);
    bytes.resize(file->bytes());
    CountReadBytes(file->bytes());
    return file->Read(0, absl::MakeSpan(bytes));
  }

  const LabelledFiles files_;
  const std::vector<uint32_t> training_;
  const std::vector<uint32_t> held_out_;
  const std::optional<LabelledFiles> evaluation_;
  const LabelledRows rows_;
  const std::unique_ptr<const ImageRows> maker_;
  const int64_t pixels_;
};

absl::Status CheckModel(const v1::Graph& graph) {
  RETURN_IF_ERROR(LabelledRows::Check(graph, "data.images"));
  const v1::GraphInput& input = *FindInput(graph, "input");
  const bool is_image = input.dtype() == v1::DTYPE_F32 && input.shape_size() == 4;
  if (!is_image || !HasInput(graph, "target", v1::DTYPE_I32, {-1})) {
    return DataInvalid(
        "data.images",
        absl::StrCat("fills input f32[-1, channels, height, width] and target "
                     "i32[-1], but the model's are ",
                     DescribeInput(graph, "input"), " and ", DescribeInput(graph, "target")));
  }
  return absl::OkStatus();
}

absl::Status CheckClasses(const LabelledFiles& files, const InputUse& use) {
  if (files.classes <= use.limit) return absl::OkStatus();
  if (files.names.empty()) {
    return DataInvalid(
        files.field,
        absl::StrCat(files.source, ": line ", files.last_class_line, " has the class ",
                     files.classes - 1, "; the model takes ", ToText(use),
                     ": set model.zoo.args.classes to ", files.classes, ", or correct the label"));
  }
  return DataInvalid(files.field, absl::StrCat(files.source, ": ", files.classes,
                                               " classes do not fit the model's ", use.limit,
                                               ": set model.zoo.args.classes to ", files.classes));
}

// Checks that both folders number the classes alike.
absl::Status CheckSameClasses(const LabelledFiles& training, const LabelledFiles& evaluation) {
  if (training.names.empty() || evaluation.names.empty()) return absl::OkStatus();
  std::vector<std::string> unknown;
  std::set_difference(evaluation.names.begin(), evaluation.names.end(), training.names.begin(),
                      training.names.end(), std::back_inserter(unknown));
  std::string problem = " which the training data lack";
  if (unknown.empty()) {
    std::set_difference(training.names.begin(), training.names.end(), evaluation.names.begin(),
                        evaluation.names.end(), std::back_inserter(unknown));
    if (unknown.empty()) return absl::OkStatus();
    return DataInvalid(evaluation.field,
                       absl::StrCat(evaluation.folder, ": lacks the folder ", unknown[0],
                                    " of the training data, so classes would be numbered "
                                    "otherwise"));
  }
  if (unknown.size() > kClassesInMessage) unknown.resize(kClassesInMessage);
  return DataInvalid(evaluation.field, absl::StrCat(evaluation.folder, ": has the folders ",
                                                    absl::StrJoin(unknown, ", "), problem));
}

absl::StatusOr<LabelledFiles> ReadFiles(const std::string& path, const std::string& list,
                                        const std::string& prefix, const ListLimits& limits) {
  const std::string path_field = absl::StrCat("data.images.", prefix, "path");
  if (!list.empty()) {
    const std::string folder =
        path.empty() ? std::filesystem::path(list).parent_path().string() : path;
    ASSIGN_OR_RETURN(LabelledFiles files,
                     ReadList(list, folder, absl::StrCat("data.images.", prefix, "list"), limits));
    // A list with wrong paths is found now, not at the first batch.
    RETURN_IF_ERROR(DataFile::Open(files.path(0), files.field).status());
    return files;
  }
  if (path.empty()) return DataInvalid(path_field, "required, or a list");
  return ReadFolders(path, path_field, limits.held_bytes_max);
}

absl::StatusOr<LabelledFiles> ReadTraining(const v1::ImagesData& images, const ListLimits& limits) {
  return ReadFiles(images.path(), images.list(), "", limits);
}

absl::StatusOr<LabelledFiles> ReadEvaluation(const v1::ImagesData& images,
                                             const ListLimits& limits) {
  // A list of held-out images starts from the folder of the training images if it has no own.
  const bool is_list = !images.eval_list().empty();
  return ReadFiles(is_list && images.eval_path().empty() ? images.path() : images.eval_path(),
                   images.eval_list(), "eval_", limits);
}

}  // namespace

absl::Status CheckImageList(const v1::ImagesData& images, const InputUse& target,
                            bool is_evaluation) {
  const ListLimits limits = {.read_bytes_max = kListBytesChecked};
  ASSIGN_OR_RETURN(const LabelledFiles files,
                   is_evaluation ? ReadEvaluation(images, limits) : ReadTraining(images, limits));
  return CheckClasses(files, target);
}

absl::StatusOr<std::unique_ptr<const Dataset>> OpenImagesDataset(
    const v1::DataSpec& spec, const v1::Graph& graph, const DataOptions& options,
    const MakeImageRows& make_image_rows) {
  const v1::ImagesData& images = spec.images();
  const double holdout = images.holdout();
  const bool has_evaluation = !images.eval_path().empty() || !images.eval_list().empty();
  if (!(holdout >= 0 && holdout <= 0.5)) {
    return DataInvalid("data.images.holdout",
                       absl::StrCat("must be in [0, 0.5] (is ", holdout, ")"));
  }
  if (holdout > 0 && has_evaluation) {
    return DataInvalid("data.images.holdout",
                       "cannot be given together with eval_path or eval_list");
  }
  RETURN_IF_ERROR(CheckModel(graph));
  LabelledRows rows(graph);
  const auto& shape = FindInput(graph, "input")->shape();
  ASSIGN_OR_RETURN(auto maker,
                   make_image_rows(spec.image(), spec.seed(), shape[1], shape[2], shape[3]));
  ASSIGN_OR_RETURN(LabelledFiles files,
                   ReadTraining(images, {.held_bytes_max = options.held_bytes_max}));
  RETURN_IF_ERROR(CheckClasses(files, rows.target_use()));
  std::optional<LabelledFiles> evaluation;
  if (has_evaluation) {
    const int64_t bytes_left = options.held_bytes_max - files.images.held_bytes();
    ASSIGN_OR_RETURN(evaluation, ReadEvaluation(images, {.held_bytes_max = bytes_left}));
    RETURN_IF_ERROR(CheckClasses(*evaluation, rows.target_use()));
    RETURN_IF_ERROR(CheckSameClasses(files, *evaluation));
  }
  if (files.images.size() > std::numeric_limits<uint32_t>::max()) {
    return DataTooLarge(files.field, files.folder, options.held_bytes_max);
  }
  std::vector<uint32_t> training, held_out;
  if (holdout > 0) {
    // The name decides, so an image stays held out if others come and go.
    const auto limit = static_cast<uint64_t>(holdout * 0x1p64);
    for (int64_t i = 0; i < files.images.size(); ++i) {
      const std::string name = files.names.empty() ? "" : files.names[files.images.label(i)] + "/";
      const uint64_t hash = Mixed(HashOf(files.images.name(i), HashOf(name)));
      (hash < limit ? held_out : training).push_back(static_cast<uint32_t>(i));
    }
    if (training.empty()) {
      return DataTooSmall("data.images.holdout",
                          absl::StrCat("leaves none of ", files.images.size(), " to train on"));
    }
  }
  const int64_t pixels = shape[1] * shape[2] * shape[3];
  return std::make_unique<ImagesDataset>(std::move(files), std::move(training), std::move(held_out),
                                         std::move(evaluation), std::move(rows), std::move(maker),
                                         pixels);
}

}  // namespace muster
