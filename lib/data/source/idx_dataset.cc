#include "lib/data/source/idx_dataset.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "kernels/byte_values.h"
#include "lib/data/data_fault.h"
#include "lib/data/fingerprint.h"
#include "lib/data/labelled_rows.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kElementsMax = int64_t{1} << 36;  // limit of bytes held in memory
constexpr int64_t kReadBytes = 1 << 20;
constexpr unsigned char kUnsignedByte = 0x08;

struct IdxFile {
  std::vector<int64_t> shape;  // the first dimension counts samples
  std::vector<unsigned char> elements;
};

struct CloseGzip {
  void operator()(gzFile file) const { gzclose(file); }
};
using GzipFile = std::unique_ptr<gzFile_s, CloseGzip>;

// Reads up to `bytes` more. Memory grows with the data that is present, not with the size that a
// header claims.
absl::StatusOr<std::vector<unsigned char>> ReadUpTo(gzFile file, int64_t bytes,
                                                    absl::string_view field,
                                                    absl::string_view path) {
  std::vector<unsigned char> content;
  while (static_cast<int64_t>(content.size()) < bytes) {
    const size_t before = content.size();
    content.resize(before + std::min<int64_t>(kReadBytes, bytes - before));
    const int got = gzread(file, content.data() + before, content.size() - before);
    content.resize(before + std::max(0, got));
    if (got > 0) continue;
    const int error_number = errno;
    int code = Z_OK;
    const char* message = gzerror(file, &code);
    if (code == Z_OK || code == Z_STREAM_END) break;
    if (code == Z_ERRNO) return DataPathFault(field, path, error_number);
    if (code == Z_BUF_ERROR) {
      return DataTruncated(field, absl::StrCat(path, ": the gzip stream ends early"));
    }
    return DataInvalid(field, absl::StrCat(path, ": damaged gzip stream: ", message));
  }
  return content;
}

// Reads an IDX file, and subtracts the memory that it takes from `bytes_left`.
absl::StatusOr<IdxFile> ReadIdx(const std::string& path, absl::string_view field,
                                int64_t& bytes_left) {
  ASSIGN_OR_RETURN(const int descriptor, OpenDataFile(path, field));
  GzipFile file(gzdopen(descriptor, "rb"));
  if (file == nullptr) {
    close(descriptor);
    return DataPathFault(field, path, ENOMEM);
  }

  auto read = [&](int64_t bytes) { return ReadUpTo(file.get(), bytes, field, path); };
  ASSIGN_OR_RETURN(std::vector<unsigned char> magic, read(4));
  if (magic.size() < 4) {
    return DataTruncated(field, absl::StrCat(path, ": ", magic.size(), " bytes, no IDX magic"));
  }
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != kUnsignedByte) {
    return DataInvalid(field, absl::StrCat(path, ": not an IDX file of unsigned bytes"));
  }
  const int64_t dimensions = magic[3];
  ASSIGN_OR_RETURN(std::vector<unsigned char> header, read(4 * dimensions));
  if (static_cast<int64_t>(header.size()) < 4 * dimensions) {
    return DataTruncated(field,
                         absl::StrCat(path, ": ends inside its ", dimensions, " dimensions"));
  }
  IdxFile idx;
  int64_t elements = 1;
  for (int64_t d = 0; d < dimensions; ++d) {
    const unsigned char* size = header.data() + 4 * d;
    idx.shape.push_back(int64_t{size[0]} << 24 | size[1] << 16 | size[2] << 8 | size[3]);
    if (idx.shape.back() == 0) {
      return DataTooSmall(field, absl::StrCat(path, ": dimension ", d, " is 0"));
    }
    if (elements > kElementsMax / idx.shape.back()) {
      return DataInvalid(field, absl::StrCat(path, ": dimensions ", absl::StrJoin(idx.shape, " x "),
                                             " ... exceed ", kElementsMax, " elements"));
    }
    elements *= idx.shape.back();
  }
  if (elements > bytes_left) return DataTooLarge(field, path, bytes_left);
  bytes_left -= elements;
  // Read one byte more than the dimensions say. That detects trailing bytes, and makes zlib check
  // the end of the stream.
  ASSIGN_OR_RETURN(idx.elements, read(elements + 1));
  const int64_t found = idx.elements.size();
  if (found < elements) {
    return DataTruncated(field, absl::StrCat(path, ": ", found, " of ", elements, " elements"));
  }
  if (found > elements) {
    return DataInvalid(field, absl::StrCat(path, ": bytes follow the ", elements, " elements"));
  }
  return idx;
}

// Images [samples, pixels] and their labels.
struct LabelledImages {
  std::vector<int64_t> image_shape;  // channels, rows, columns
  std::vector<unsigned char> pixels;
  std::vector<unsigned char> labels;
};

absl::StatusOr<LabelledImages> ReadImages(const std::string& images_path,
                                          absl::string_view images_field,
                                          const std::string& labels_path,
                                          absl::string_view labels_field, int64_t& bytes_left) {
  ASSIGN_OR_RETURN(IdxFile images, ReadIdx(images_path, images_field, bytes_left));
  if (images.shape.size() != 3 && images.shape.size() != 4) {
    return DataInvalid(images_field, absl::StrCat(images_path, ": ", images.shape.size(),
                                                  " dimensions, images have 3 or 4"));
  }
  ASSIGN_OR_RETURN(IdxFile labels, ReadIdx(labels_path, labels_field, bytes_left));
  if (labels.shape.size() != 1) {
    return DataInvalid(labels_field, absl::StrCat(labels_path, ": ", labels.shape.size(),
                                                  " dimensions, labels have 1"));
  }
  if (labels.shape[0] != images.shape[0]) {
    return DataInvalid(labels_field, absl::StrCat(labels_path, ": ", labels.shape[0],
                                                  " labels for ", images.shape[0], " images"));
  }
  std::vector<int64_t> shape(images.shape.begin() + 1, images.shape.end());
  if (shape.size() == 2) shape.insert(shape.begin(), 1);
  return LabelledImages{std::move(shape), std::move(images.elements), std::move(labels.elements)};
}

kernels::ByteValues PixelValues() {
  kernels::ByteValues values;
  for (int pixel = 0; pixel < 256; ++pixel) values[pixel] = (pixel / 255.0 - 0.5) / 0.5;
  return values;
}

std::string FingerprintOfLabels(const LabelledImages& training,
                                const std::optional<LabelledImages>& evaluation) {
  std::vector<std::string> facts = {"idx"};
  for (const LabelledImages* images : {&training, evaluation ? &*evaluation : nullptr}) {
    if (images == nullptr) continue;
    facts.push_back(absl::StrJoin(images->image_shape, "x"));
    facts.emplace_back(images->labels.begin(), images->labels.end());
  }
  return FingerprintOf(facts);
}

class IdxDataset : public Dataset {
 public:
  // The first `samples` of `training` are for training. Without `evaluation` the others are held
  // out.
  IdxDataset(LabelledImages training, int64_t samples, std::optional<LabelledImages> evaluation,
             LabelledRows rows)
      : training_(std::move(training)),
        samples_(samples),
        evaluation_(std::move(evaluation)),
        fingerprint_(FingerprintOfLabels(training_, evaluation_)),
        rows_(std::move(rows)) {}

  int64_t samples() const override { return samples_; }

  int64_t evaluation_samples() const override {
    return evaluation_ ? evaluation_->labels.size() : training_.labels.size() - samples_;
  }

  absl::Span<const kernels::ByteValues> row_values(int input) const override {
    if (input != rows_.input_number()) return {};
    return absl::MakeConstSpan(&values_, 1);
  }

  std::string fingerprint() const override { return fingerprint_; }

  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    CheckSizes(samples.size(), rows);
    for (size_t row = 0; row < samples.size(); ++row) {
      const int64_t sample = samples[row].sample;
      CHECK(0 <= sample && sample < samples_) << sample;
      CopySample(training_, sample, row, rows);
    }
    return absl::OkStatus();
  }

  absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const override {
    CheckSizes(count, rows);
    CHECK(0 <= first && 0 <= count && count <= evaluation_samples() - first)
        << first << " + " << count << " of " << evaluation_samples();
    for (int64_t row = 0; row < count; ++row) {
      if (evaluation_) {
        CopySample(*evaluation_, first + row, row, rows);
      } else {
        CopySample(training_, samples_ + first + row, row, rows);
      }
    }
    return absl::OkStatus();
  }

 private:
  int64_t Pixels() const { return training_.pixels.size() / training_.labels.size(); }

  void CheckSizes(size_t count, Rows rows) const {
    rows_.CheckSizes(rows, count, Pixels(), sizeof(int32_t));
  }

  void CopySample(const LabelledImages& from, int64_t sample, size_t row, Rows rows) const {
    if (!rows_.input(rows).empty()) {
      const int64_t pixels = Pixels();
      std::memcpy(rows_.input(rows).data() + row * pixels, from.pixels.data() + sample * pixels,
                  pixels);
    }
    if (!rows_.target(rows).empty()) {
      const int32_t label = from.labels[sample];
      std::memcpy(rows_.target(rows).data() + row * sizeof(label), &label, sizeof(label));
    }
  }

  const kernels::ByteValues values_ = PixelValues();
  const LabelledImages training_;
  const int64_t samples_;
  const std::optional<LabelledImages> evaluation_;
  const std::string fingerprint_;
  const LabelledRows rows_;
};

absl::Status CheckFits(const LabelledImages& images, const v1::Graph& graph) {
  const std::vector<int64_t>& shape = images.image_shape;
  const int64_t pixels = shape[0] * shape[1] * shape[2];
  if (!HasInput(graph, "input", v1::DTYPE_F32, {-1, shape[0], shape[1], shape[2]}) &&
      !HasInput(graph, "input", v1::DTYPE_F32, {-1, pixels})) {
    return DataInvalid("data.idx.images",
                       absl::StrCat("images are ", absl::StrJoin(shape, " x "),
                                    " but the model's input is ", DescribeInput(graph, "input")));
  }
  if (!HasInput(graph, "target", v1::DTYPE_I32, {-1})) {
    return DataInvalid("data.idx.labels",
                       absl::StrCat("labels are i32[-1] but the model's target is ",
                                    DescribeInput(graph, "target")));
  }
  return absl::OkStatus();
}

// Checks that every label is one of the model's classes.
absl::Status CheckLabels(const std::vector<unsigned char>& labels, int64_t classes,
                         absl::string_view field, const std::string& path) {
  const auto largest = std::max_element(labels.begin(), labels.end());
  if (*largest < classes) return absl::OkStatus();
  return DataInvalid(
      field, absl::StrCat(path, ": label ", *largest, " of sample ", largest - labels.begin(),
                          " does not fit the model's ", classes,
                          " classes: set model.zoo.args.classes to ", *largest + 1));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Dataset>> OpenIdxDataset(const v1::DataSpec& spec,
                                                              const v1::Graph& graph,
                                                              int64_t held_bytes_max) {
  const v1::IdxData& idx = spec.idx();
  if (!(idx.holdout() >= 0 && idx.holdout() <= 0.5)) {
    return DataInvalid("data.idx.holdout",
                       absl::StrCat("must be in [0, 0.5] (is ", idx.holdout(), ")"));
  }
  ASSIGN_OR_RETURN(
      LabelledImages training,
      ReadImages(idx.images(), "data.idx.images", idx.labels(), "data.idx.labels", held_bytes_max));
  RETURN_IF_ERROR(CheckFits(training, graph));
  RETURN_IF_ERROR(LabelledRows::Check(graph, "data.idx"));
  LabelledRows rows(graph);
  const int64_t classes = rows.target_use().limit;
  RETURN_IF_ERROR(CheckLabels(training.labels, classes, "data.idx.labels", idx.labels()));
  const int64_t count = training.labels.size();

  if (idx.eval_images().empty() && idx.eval_labels().empty()) {
    const int64_t samples = count - std::llround(count * idx.holdout());
    if (samples < 1) {
      return DataTooSmall("data.idx.holdout",
                          absl::StrCat("leaves none of ", count, " to train on"));
    }
    return std::make_unique<IdxDataset>(std::move(training), samples, std::nullopt,
                                        std::move(rows));
  }
  if (idx.holdout() > 0) {
    return DataInvalid("data.idx.holdout", "cannot be given together with eval_images");
  }
  ASSIGN_OR_RETURN(LabelledImages evaluation,
                   ReadImages(idx.eval_images(), "data.idx.eval_images", idx.eval_labels(),
                              "data.idx.eval_labels", held_bytes_max));
  if (evaluation.image_shape != training.image_shape) {
    return DataInvalid(
        "data.idx.eval_images",
        absl::StrCat("images are ", absl::StrJoin(evaluation.image_shape, " x "),
                     ", those to train on ", absl::StrJoin(training.image_shape, " x ")));
  }
  RETURN_IF_ERROR(
      CheckLabels(evaluation.labels, classes, "data.idx.eval_labels", idx.eval_labels()));
  return std::make_unique<IdxDataset>(std::move(training), count, std::move(evaluation),
                                      std::move(rows));
}

}  // namespace muster
