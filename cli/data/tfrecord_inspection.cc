#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/data/source_inspection.h"
#include "lib/data/file/data_file.h"
#include "lib/data/format/example.h"
#include "lib/data/format/tfrecord.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

constexpr int kNumbersShown = 8;
constexpr int64_t kExamplesRead = 100;

// A feature of the first Examples of a file.
struct FeatureFacts {
  Feature::Kind kind = Feature::Kind::kNoList;
  int64_t examples = 0;
  int64_t least = INT64_MAX;  // values of a list, or bytes
  int64_t most = 0;
  std::string first;
  bool is_image = false;

  bool is_number() const {
    return kind == Feature::Kind::kIntegers || kind == Feature::Kind::kFloats;
  }
};

template <typename T>
absl::StatusOr<int64_t> ReadNumbers(const Feature& feature, FeatureFacts& facts,
                                    absl::StatusOr<int64_t> (*read)(const Feature& feature,
                                                                    absl::Span<T> to)) {
  T first[kNumbersShown];
  ASSIGN_OR_RETURN(const int64_t size, read(feature, absl::MakeSpan(first)));
  if (facts.examples == 0) {
    facts.first =
        absl::StrJoin(absl::MakeSpan(first, std::min<int64_t>(size, kNumbersShown)), ", ");
  }
  return size;
}

absl::Status AddFeature(const Feature& feature, const InspectOptions& options,
                        FeatureFacts& facts) {
  if (feature.kind == Feature::Kind::kNoList) return absl::OkStatus();
  facts.kind = feature.kind;
  int64_t size = 0;
  if (feature.kind == Feature::Kind::kBytes) {
    const auto bytes = ReadBytes(feature);
    // The list has another number of texts than one.
    if (!bytes.ok()) return absl::OkStatus();
    size = std::ssize(*bytes);
    if (facts.examples == 0) {
      facts.first =
          DescribeImage(options, {reinterpret_cast<const char*>(bytes->data()), bytes->size()});
      facts.is_image = !facts.first.empty();
    }
  } else if (feature.kind == Feature::Kind::kFloats) {
    ASSIGN_OR_RETURN(size, ReadNumbers<float>(feature, facts, ReadFloats));
  } else if (feature.kind == Feature::Kind::kIntegers) {
    ASSIGN_OR_RETURN(size, ReadNumbers<int64_t>(feature, facts, ReadIntegers));
  }
  ++facts.examples;
  facts.least = std::min(facts.least, size);
  facts.most = std::max(facts.most, size);
  return absl::OkStatus();
}

using Features = std::map<std::string, FeatureFacts>;

// Returns the integer that is likely the class of an image, or "".
std::string LabelOf(const Features& features) {
  std::string label;
  for (const auto& [name, facts] : features) {
    const bool is_one =
        facts.kind == Feature::Kind::kIntegers && facts.least == 1 && facts.most == 1;
    if (!is_one) continue;
    if (absl::EndsWith(name, "label")) return name;
    if (label.empty()) label = name;
  }
  return label;
}

// Fills "input" and "target" of models of images, or an input of the name of each feature. Returns
// the features that no input reads.
std::vector<std::string> Propose(const Features& features, int64_t examples, v1::DataSpec& spec) {
  auto& inputs = *spec.mutable_tfrecord()->mutable_inputs();
  std::vector<std::string> unused;
  const auto image = std::find_if(features.begin(), features.end(),
                                  [](const auto& feature) { return feature.second.is_image; });
  if (image != features.end()) {
    inputs["input"].mutable_image()->set_feature(image->first);
    SetUsualTransforms(*spec.mutable_image());
    const std::string label = LabelOf(features);
    if (!label.empty()) inputs["target"].mutable_fixed()->set_feature(label);
    for (const auto& [name, facts] : features) {
      if (name != image->first && name != label) unused.push_back(name);
    }
    return unused;
  }
  for (const auto& [name, facts] : features) {
    const bool has_room = std::ssize(inputs) < limits::kGraphInputsMax;
    if (!facts.is_number() || !has_room || name.size() > limits::kTensorNameBytesMax) {
      unused.push_back(name);
    } else if (facts.least == facts.most && facts.examples == examples) {
      inputs[name].mutable_fixed()->set_feature(name);
    } else {
      inputs[name].mutable_variable()->set_feature(name);
    }
  }
  if (inputs.empty()) spec.Clear();
  return unused;
}

std::string DescribeFeature(const FeatureFacts& facts) {
  std::string text(ToText(facts.kind));
  if (facts.examples == 0) return text;  // lists of texts, or nothing
  absl::StrAppend(&text, ", ", facts.least);
  if (facts.least != facts.most) absl::StrAppend(&text, " to ", facts.most);
  absl::StrAppend(&text, !facts.is_number() ? " long" : facts.most == 1 ? " value" : " values");
  if (!facts.first.empty()) absl::StrAppend(&text, "; first: ", facts.first);
  return text;
}

}  // namespace

absl::StatusOr<SourceInspection> InspectTfrecord(const std::string& path,
                                                 absl::Span<const ListedFile> files,
                                                 const InspectOptions& options) {
  ASSIGN_OR_RETURN(const auto file, DataFile::Open(files[0].path, kInspectedField));
  TfrecordScanner scanner(*file, kInspectedField);
  Features features;
  int64_t records = 0;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, scanner.Next());
    if (!more) break;
    if (records++ >= kExamplesRead) continue;
    ASSIGN_OR_RETURN(const auto example, scanner.Data(TfrecordScanner::Check::kChecksum));
    ASSIGN_OR_RETURN(const auto found, AllFeatures(example));
    for (const auto& [name, feature] : found) {
      RETURN_IF_ERROR(AddFeature(feature, options, features[name]));
    }
  }
  SourceInspection inspection{
      .text = absl::StrCat(DescribeFiles("tfrecord", files), "\n", files[0].path, ": ",
                           Count(records, "record"), "\n"),
      .samples = records};
  for (const auto& [name, facts] : features) {
    absl::StrAppend(&inspection.text, "  ", absl::Utf8SafeCEscape(name), ": ",
                    DescribeFeature(facts), "\n");
  }
  inspection.spec.mutable_tfrecord()->set_path(path);
  const std::vector<std::string> unused =
      Propose(features, std::min(records, kExamplesRead), inspection.spec);
  if (!unused.empty()) {
    absl::StrAppend(&inspection.text, "  without an input below: ",
                    absl::Utf8SafeCEscape(absl::StrJoin(unused, ", ")), "\n");
  }
  return inspection;
}

}  // namespace muster::cli
