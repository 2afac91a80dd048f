#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/data/source_inspection.h"
#include "lib/data/file/data_file.h"
#include "lib/data/format/tar.h"
#include "lib/status/status.h"
#include "nlohmann/json.hpp"

namespace muster::cli {
namespace {

constexpr int64_t kReadBytesMax = 64 << 20;  // of a member
constexpr int kMembersRead = 3;
constexpr size_t kTextBytesShown = 60;
constexpr absl::string_view kNpyMagic = "\x93NUMPY";

// The members of an archive with one extension.
struct Extension {
  int64_t members = 0;
  int64_t least_bytes = INT64_MAX;
  int64_t most_bytes = 0;
  std::vector<std::string> firsts;  // the first values

  // The kind of each member that was read. kUnknown: no input of a job reads it.
  enum class Kind : uint8_t { kUnknown, kImage, kArray, kInteger, kJson } kind = Kind::kUnknown;
  std::string json_field;
};

// Returns a field of the object that may be the target, or "".
std::string TargetField(absl::string_view text) {
  const auto object = nlohmann::json::parse(text.begin(), text.end(), /*cb=*/nullptr,
                                            /*allow_exceptions=*/false);
  if (!object.is_object()) return "";
  std::string first;
  for (const auto& [name, value] : object.items()) {
    if (!value.is_number_integer()) continue;
    if (name == "label" || name == "class") return name;
    if (first.empty()) first = name;
  }
  return first;
}

// Sets the kind by the first member, and adds what is worth showing.
void AddContent(absl::string_view bytes, const InspectOptions& options, Extension& extension) {
  using enum Extension::Kind;
  if (const std::string image = DescribeImage(options, bytes); !image.empty()) {
    if (extension.members == 1) extension.kind = kImage;
    extension.firsts.push_back(image);
    return;
  }
  int64_t number = 0;
  const absl::string_view text = absl::StripAsciiWhitespace(bytes);
  const bool is_integer = absl::SimpleAtoi(text, &number);
  if (extension.members == 1) {
    extension.json_field = TargetField(text);
    extension.kind = absl::StartsWith(bytes, kNpyMagic) ? kArray
                     : is_integer                       ? kInteger
                     : !extension.json_field.empty()    ? kJson
                                                        : kUnknown;
  } else if (extension.kind == kInteger && !is_integer) {
    extension.kind = kUnknown;
  }
  const bool is_text = std::all_of(
      text.begin(), text.end(), [](unsigned char c) { return c >= ' ' || absl::ascii_isspace(c); });
  if (is_text) extension.firsts.push_back(absl::Utf8SafeCEscape(text.substr(0, kTextBytesShown)));
}

using Extensions = std::map<std::string, Extension>;

// Finds the extensions that may be the inputs of a model, the likeliest first.
std::vector<std::string> OfKind(const Extensions& extensions, Extension::Kind kind) {
  std::vector<std::string> keys;
  for (const auto& [key, extension] : extensions) {
    if (extension.kind == kind) keys.push_back(key);
  }
  // "cls" is WebDataset's name for the class.
  std::stable_partition(keys.begin(), keys.end(), [](const auto& key) { return key == "cls"; });
  return keys;
}

v1::TarInput InputOf(const std::string& key, const Extension& extension) {
  v1::TarInput input;
  input.set_extension(key);
  switch (extension.kind) {
    case Extension::Kind::kImage:
      input.mutable_image();
      break;
    case Extension::Kind::kArray:
      input.mutable_array();
      break;
    case Extension::Kind::kInteger:
      input.mutable_integer();
      break;
    case Extension::Kind::kJson:
      input.mutable_json()->set_field(extension.json_field);
      break;
    case Extension::Kind::kUnknown:
      break;
  }
  return input;
}

// Fills "input" and "target", which most models read. Without samples of several images, all
// extensions of images are those of one input. Returns the extensions that no input reads.
std::vector<std::string> Propose(const Extensions& extensions, bool has_several_images,
                                 v1::DataSpec& spec) {
  using enum Extension::Kind;
  const std::vector<std::string> images = OfKind(extensions, kImage);
  std::vector<std::string> inputs = images, targets;
  for (const auto kind : {kArray, kInteger, kJson}) {
    for (const std::string& key : OfKind(extensions, kind)) {
      // An array is the target only if nothing else is.
      (inputs.empty() && kind == kArray ? inputs : targets).push_back(key);
    }
  }
  std::stable_partition(targets.begin(), targets.end(),
                        [&](const std::string& key) { return extensions.at(key).kind != kArray; });
  std::vector<std::string> used;
  auto& tar_inputs = *spec.mutable_tar()->mutable_inputs();
  if (!inputs.empty()) {
    tar_inputs["input"] = InputOf(inputs[0], extensions.at(inputs[0]));
    used.push_back(inputs[0]);
  }
  if (!targets.empty()) {
    tar_inputs["target"] = InputOf(targets[0], extensions.at(targets[0]));
    used.push_back(targets[0]);
  }
  if (images.size() > 1 && !has_several_images) {
    tar_inputs["input"].set_extension(absl::StrJoin(images, ";"));
    used.insert(used.end(), images.begin(), images.end());
  }
  if (!images.empty()) SetUsualTransforms(*spec.mutable_image());
  if (used.empty()) spec.Clear();
  std::vector<std::string> unused;
  for (const auto& [key, extension] : extensions) {
    if (std::ranges::find(used, key) == used.end()) unused.push_back(absl::Utf8SafeCEscape(key));
  }
  return unused;
}

}  // namespace

absl::StatusOr<SourceInspection> InspectTar(const std::string& path,
                                            absl::Span<const ListedFile> files,
                                            const InspectOptions& options) {
  ASSIGN_OR_RETURN(const auto file, DataFile::Open(files[0].path, kInspectedField));
  TarReader reader(file, kInspectedField);
  Extensions extensions;
  std::string base;
  int64_t samples = 0;
  int images = 0;  // of the sample
  bool has_several_images = false;
  while (true) {
    ASSIGN_OR_RETURN(const auto member, reader.Next());
    if (!member) break;
    const size_t start = member->name.rfind('/') + 1;  // 0 if there is no slash
    const size_t dot = member->name.find('.', start);
    if (dot == absl::string_view::npos || dot == start) continue;
    if (member->name.substr(0, dot) != base) {
      ++samples;
      images = 0;
    }
    base = std::string(member->name.substr(0, dot));
    Extension& extension = extensions[absl::AsciiStrToLower(member->name.substr(dot + 1))];
    ++extension.members;
    extension.least_bytes = std::min(extension.least_bytes, member->bytes);
    extension.most_bytes = std::max(extension.most_bytes, member->bytes);
    if (extension.members <= kMembersRead && member->bytes <= kReadBytesMax) {
      ASSIGN_OR_RETURN(const std::string bytes, reader.ReadBytes(*member));
      AddContent(bytes, options, extension);
    }
    if (extension.kind == Extension::Kind::kImage) ++images;
    has_several_images |= images > 1;
  }
  SourceInspection inspection{.text = absl::StrCat(DescribeFiles("tar", files), "\n", files[0].path,
                                                   ": ", Count(samples, "sample"), "\n"),
                              .samples = samples};
  for (const auto& [key, extension] : extensions) {
    absl::StrAppend(&inspection.text, "  .", absl::Utf8SafeCEscape(key), ": ",
                    Count(extension.members, "member"), " of ", extension.least_bytes, " to ",
                    extension.most_bytes, " bytes");
    if (!extension.firsts.empty()) {
      absl::StrAppend(&inspection.text, "; first: ", absl::StrJoin(extension.firsts, "; "));
    }
    absl::StrAppend(&inspection.text, "\n");
  }
  inspection.spec.mutable_tar()->set_path(path);
  const std::vector<std::string> unused = Propose(extensions, has_several_images, inspection.spec);
  if (!unused.empty()) {
    absl::StrAppend(&inspection.text, "  without an input below: .", absl::StrJoin(unused, ", ."),
                    "\n");
  }
  return inspection;
}

}  // namespace muster::cli
