#include "cli/data/inspection.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "lib/data/file/data_file.h"
#include "lib/data/file/file_list.h"
#include "lib/data/format/example.h"
#include "lib/data/format/npy.h"
#include "lib/data/format/npz.h"
#include "lib/data/format/tar.h"
#include "lib/data/format/tfrecord.h"
#include "lib/status/status.h"
#include "lib/text/byte_size.h"

namespace muster::cli {
namespace {

constexpr char kField[] = "data";
constexpr int64_t kFirstBytes = 64 << 10;
constexpr int64_t kImageBytesMax = 64 << 20;
constexpr int kValuesShown = 8;
constexpr int kImagesShown = 3;
constexpr size_t kColumnsShown = 40;
constexpr int64_t kExamplesRead = 100;

// Returns the text in the quotes of YAML.
std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\"");
}

std::string Count(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

int64_t BytesOfAll(const std::vector<ListedFile>& files) {
  int64_t bytes = 0;
  for (const ListedFile& file : files) bytes += file.bytes;
  return bytes;
}

bool HasExtension(absl::string_view path, std::initializer_list<absl::string_view> extensions) {
  return std::any_of(extensions.begin(), extensions.end(), [&](absl::string_view extension) {
    return absl::EndsWithIgnoreCase(path, extension);
  });
}

bool IsImageName(absl::string_view path) {
  return HasExtension(path, {"jpg", "jpeg", "png", "webp"});
}

absl::StatusOr<std::string> FirstBytes(const std::string& path, int64_t bytes_max) {
  ASSIGN_OR_RETURN(const auto file, DataFile::Open(path, kField));
  std::string bytes(std::min(bytes_max, file->bytes()), '\0');
  ASSIGN_OR_RETURN(
      const int64_t got,
      file->ReadSome(0, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size())));
  bytes.resize(got);
  return bytes;
}

std::string DescribeImage(const InspectOptions& options, absl::string_view bytes) {
  if (options.describe_image == nullptr) return "";
  return options.describe_image({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

// The members of an archive with one extension.
struct Extension {
  int64_t members = 0;
  int64_t least_bytes = INT64_MAX;
  int64_t most_bytes = 0;
  std::vector<std::string> firsts;  // the first values

  bool is_image = false;
  bool is_integer = true;
};

absl::Status AddMember(const TarMember& member, const TarReader& reader,
                       const InspectOptions& options, Extension& extension) {
  ++extension.members;
  extension.least_bytes = std::min(extension.least_bytes, member.bytes);
  extension.most_bytes = std::max(extension.most_bytes, member.bytes);
  if (extension.members > kImagesShown || member.bytes > kImageBytesMax) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string bytes, reader.ReadBytes(member));
  if (extension.is_image) {
    const std::string image = DescribeImage(options, bytes);
    if (!image.empty()) extension.firsts.push_back(image);
    return absl::OkStatus();
  }
  int64_t number = 0;
  const absl::string_view text = absl::StripAsciiWhitespace(bytes);
  extension.is_integer &= text.size() <= 20 && absl::SimpleAtoi(text, &number);
  const bool is_text = std::all_of(
      text.begin(), text.end(), [](unsigned char c) { return c >= ' ' || absl::ascii_isspace(c); });
  if (is_text) extension.firsts.push_back(absl::Utf8SafeCEscape(text.substr(0, 60)));
  return absl::OkStatus();
}

// Returns the line of `data.tar.inputs` for an extension.
std::string TarInputLine(const std::string& key, const Extension& extension, bool is_target) {
  std::string kind;
  if (extension.is_image) {
    kind = "image: {}";
  } else if (absl::EndsWith(key, "npy")) {
    kind = "array: {}";
  } else if (absl::EndsWith(key, "json")) {
    kind = "json: {field: label}";
  } else if (extension.is_integer) {
    kind = "integer: {}";
  } else {
    return absl::StrCat("      # no input reads ", Quoted(key), "\n");
  }
  const std::string name = extension.is_image ? "input" : is_target ? "target" : key;
  return absl::StrCat("      ", Quoted(name), ": {extension: ", Quoted(key), ", ", kind, "}\n");
}

absl::StatusOr<Inspection> InspectTar(const std::string& path, const std::vector<ListedFile>& files,
                                      const InspectOptions& options) {
  ASSIGN_OR_RETURN(const auto file, DataFile::Open(files[0].path, kField));
  TarReader reader(file, kField);
  std::map<std::string, Extension> extensions;
  std::string base;
  int64_t samples = 0;
  while (true) {
    ASSIGN_OR_RETURN(const auto member, reader.Next());
    if (!member) break;
    const size_t start = member->name.rfind('/') + 1;  // 0 if there is no slash
    const size_t dot = member->name.find('.', start);
    if (dot == absl::string_view::npos || dot == start) continue;
    if (member->name.substr(0, dot) != base) ++samples;
    base = std::string(member->name.substr(0, dot));
    const std::string key = absl::AsciiStrToLower(member->name.substr(dot + 1));
    Extension& extension = extensions[key];
    extension.is_image = IsImageName(key);
    RETURN_IF_ERROR(AddMember(*member, reader, options, extension));
  }
  Inspection inspection{
      .text = absl::StrCat("tar: ", Count(std::ssize(files), "file"), ", ",
                           FormatBytes(BytesOfAll(files)), "\n", files[0].path, ": ",
                           Count(samples, "sample"), "\n"),
      .section = absl::StrCat("data:\n  tar:\n    path: ", Quoted(path), "\n    inputs:\n")};
  bool has_target = false;
  for (const auto& [key, extension] : extensions) {
    absl::StrAppend(&inspection.text, "  .", absl::Utf8SafeCEscape(key), ": ",
                    Count(extension.members, "member"), " of ", extension.least_bytes, " to ",
                    extension.most_bytes, " bytes");
    if (!extension.firsts.empty()) {
      absl::StrAppend(&inspection.text, "; first: ", absl::StrJoin(extension.firsts, "; "));
    }
    absl::StrAppend(&inspection.text, "\n");
    absl::StrAppend(&inspection.section, TarInputLine(key, extension, !has_target));
    has_target |= !extension.is_image;
  }
  return inspection;
}

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

absl::StatusOr<Inspection> InspectNpy(const std::vector<ListedFile>& files) {
  Inspection inspection{.text = absl::StrCat("npy: ", Count(std::ssize(files), "file"), "\n"),
                        .section = "data:\n  npy:\n    inputs:\n"};
  for (const ListedFile& listed : files) {
    ASSIGN_OR_RETURN(const NpyFile file, NpyFile::Open(listed.path, kField));
    absl::StrAppend(&inspection.text, listed.path, ": ", NpyTypeName(file.header().type), "[",
                    absl::StrJoin(file.header().shape, ", "), "]; first: ", FirstValues(file),
                    "\n");
    const std::string name = std::filesystem::path(listed.path).stem().string();
    absl::StrAppend(&inspection.section, "      ", Quoted(name), ": ", Quoted(listed.path), "\n");
  }
  return inspection;
}

// A feature of the first Examples of a file.
struct FeatureFacts {
  Feature::Kind kind = Feature::Kind::kNoList;
  int64_t examples = 0;
  int64_t least = INT64_MAX;  // values of a list, or bytes
  int64_t most = 0;
  std::string first;
};

absl::Status AddFeature(const Feature& feature, const InspectOptions& options,
                        FeatureFacts& facts) {
  facts.kind = feature.kind;
  int64_t size = 0;
  if (feature.kind == Feature::Kind::kBytes) {
    ASSIGN_OR_RETURN(const auto bytes, ReadBytes(feature));
    size = std::ssize(bytes);
    if (facts.examples == 0 && options.describe_image != nullptr) {
      facts.first = options.describe_image(bytes);
    }
  } else if (feature.kind == Feature::Kind::kFloats) {
    float first[kValuesShown];
    ASSIGN_OR_RETURN(size, ReadFloats(feature, first));
    if (facts.examples == 0) {
      facts.first =
          absl::StrJoin(absl::MakeSpan(first, std::min<int64_t>(size, kValuesShown)), ", ");
    }
  } else if (feature.kind == Feature::Kind::kIntegers) {
    int64_t first[kValuesShown];
    ASSIGN_OR_RETURN(size, ReadIntegers(feature, first));
    if (facts.examples == 0) {
      facts.first =
          absl::StrJoin(absl::MakeSpan(first, std::min<int64_t>(size, kValuesShown)), ", ");
    }
  }
  ++facts.examples;
  facts.least = std::min(facts.least, size);
  facts.most = std::max(facts.most, size);
  return absl::OkStatus();
}

// Returns the line of `data.tfrecord.inputs` for a feature.
std::string FeatureLine(const std::string& name, const FeatureFacts& facts) {
  const bool is_image = facts.kind == Feature::Kind::kBytes && !facts.first.empty();
  if (facts.kind == Feature::Kind::kBytes && !is_image) {
    return absl::StrCat("      # no input reads ", Quoted(name), "\n");
  }
  const char* const kind = is_image ? "image" : facts.least == facts.most ? "fixed" : "variable";
  return absl::StrCat("      ", Quoted(is_image ? "input" : name), ": {", kind,
                      ": {feature: ", Quoted(name), "}}\n");
}

absl::StatusOr<Inspection> InspectTfrecord(const std::string& path,
                                           const std::vector<ListedFile>& files,
                                           const InspectOptions& options) {
  ASSIGN_OR_RETURN(const auto file, DataFile::Open(files[0].path, kField));
  TfrecordScanner scanner(*file, kField);
  std::map<std::string, FeatureFacts> features;
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
  Inspection inspection{
      .text = absl::StrCat("tfrecord: ", Count(std::ssize(files), "file"), ", ",
                           FormatBytes(BytesOfAll(files)), "\n", files[0].path, ": ",
                           Count(records, "record"), "\n"),
      .section = absl::StrCat("data:\n  tfrecord:\n    path: ", Quoted(path), "\n    inputs:\n")};
  for (const auto& [name, facts] : features) {
    absl::StrAppend(&inspection.text, "  ", absl::Utf8SafeCEscape(name), ": ", ToText(facts.kind),
                    ", ", facts.least,
                    facts.least == facts.most ? "" : absl::StrCat(" to ", facts.most),
                    facts.kind == Feature::Kind::kBytes ? " long" : " values",
                    facts.first.empty() ? "" : absl::StrCat("; first: ", facts.first), "\n");
    absl::StrAppend(&inspection.section, FeatureLine(name, facts));
  }
  return inspection;
}

// Returns whether a file begins with the header of a record.
bool IsTfrecord(const std::string& path) {
  const auto file = DataFile::Open(path, kField);
  if (!file.ok()) return false;
  TfrecordScanner scanner(**file, kField);
  return scanner.Next().value_or(false);
}

absl::StatusOr<Inspection> InspectNpz(const std::string& path) {
  ASSIGN_OR_RETURN(const NpzFile file, NpzFile::Open(path, kField));
  Inspection inspection{
      .text = absl::StrCat("npz: ", Count(std::ssize(file.members()), "array"), "\n"),
      .section = absl::StrCat("data:\n  npz:\n    path: ", Quoted(path), "\n    inputs:\n")};
  for (const ZipMember& member : file.members()) {
    const std::string name(absl::StripSuffix(member.name, ".npy"));
    ASSIGN_OR_RETURN(const NpzFile::Array array, file.Find(name, kField));
    absl::StrAppend(&inspection.text, "  ", absl::Utf8SafeCEscape(name), ": ",
                    NpyTypeName(array.header.type), "[", absl::StrJoin(array.header.shape, ", "),
                    "]\n");
    absl::StrAppend(&inspection.section, "      ", Quoted(name), ": ", Quoted(name), "\n");
  }
  return inspection;
}

bool IsNumber(absl::string_view text) {
  double number = 0;
  return absl::SimpleAtod(absl::StripAsciiWhitespace(text), &number);
}

absl::StatusOr<Inspection> InspectCsv(const std::string& path,
                                      const std::vector<ListedFile>& files) {
  ASSIGN_OR_RETURN(const std::string bytes, FirstBytes(files[0].path, kFirstBytes));
  const bool is_whole = std::ssize(bytes) == files[0].bytes;
  std::vector<absl::string_view> lines = absl::StrSplit(bytes, '\n');
  // The last line is empty, or the first bytes end in it.
  if (lines.size() > 1 && (!is_whole || lines.back().empty())) lines.pop_back();
  const char separator =
      absl::EndsWith(files[0].path, ".tsv") || absl::StrContains(lines[0], '\t') ? '\t' : ',';
  const auto fields_of = [&](absl::string_view line) {
    return std::vector<std::string>(absl::StrSplit(absl::StripSuffix(line, "\r"), separator));
  };
  const std::vector<std::string> first = fields_of(lines[0]);
  const bool has_header = std::none_of(first.begin(), first.end(), IsNumber);
  if (has_header && lines.size() == 1) {
    return absl::InvalidArgumentError(absl::StrCat(files[0].path, ": has a header and no line"));
  }
  const std::vector<std::string> values = fields_of(lines[has_header ? 1 : 0]);
  const int64_t rows = std::ssize(lines) - has_header;
  const int64_t estimate = is_whole ? rows : files[0].bytes * rows / std::ssize(bytes);
  Inspection inspection{
      .text = absl::StrCat(
          "csv: ", Count(std::ssize(files), "file"), ", ", FormatBytes(BytesOfAll(files)), "\n",
          files[0].path, ": ", is_whole ? "" : "about ", Count(estimate, "line"), ", ",
          has_header ? "a header, " : "no header, ", Count(std::ssize(values), "column"),
          ", separated by ", separator == '\t' ? "tabs" : "commas", "\n")};
  std::vector<std::string> numbers;
  std::string last;
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string name = has_header && i < first.size() ? first[i] : absl::StrCat(i + 1);
    if (i < kColumnsShown) {
      absl::StrAppend(&inspection.text, "  ", absl::Utf8SafeCEscape(name), ": ",
                      IsNumber(values[i]) ? "number" : "text",
                      "; first: ", absl::Utf8SafeCEscape(values[i].substr(0, 60)), "\n");
    }
    last = Quoted(name);
    if (i + 1 < values.size() && IsNumber(values[i])) numbers.push_back(last);
  }
  inspection.section = absl::StrCat(
      "data:\n  csv:\n    path: ", Quoted(path), "\n    header: ", has_header ? "true" : "false",
      "\n    inputs:\n      input: {columns: [", absl::StrJoin(numbers, ", "),
      "], number: {}}\n      target: {columns: [", last, "], number: {}}\n");
  return inspection;
}

absl::StatusOr<Inspection> InspectImages(const std::string& path,
                                         const std::vector<std::string>& classes,
                                         const InspectOptions& options) {
  int64_t images = 0, others = 0, bytes = 0, least = INT64_MAX, most = 0;
  std::vector<std::string> firsts;
  for (const std::string& name : classes) {
    const std::string folder = absl::StrCat(path, "/", name);
    int64_t of_class = 0;
    std::string first;
    RETURN_IF_ERROR(VisitFiles(folder, kField, {.is_recursive = true},
                               [&](absl::string_view file, int64_t file_bytes, int64_t) {
                                 ++of_class;
                                 bytes += file_bytes;
                                 ++(IsImageName(file) ? images : others);
                                 if (first.empty() || file < first) first = std::string(file);
                                 return absl::OkStatus();
                               }));
    least = std::min(least, of_class);
    most = std::max(most, of_class);
    if (first.empty() || firsts.size() == kImagesShown) continue;
    const std::string first_path = absl::StrCat(folder, "/", first);
    ASSIGN_OR_RETURN(const std::string file, FirstBytes(first_path, kImageBytesMax));
    const std::string image = DescribeImage(options, file);
    firsts.push_back(absl::StrCat("  ", first_path, ": ", file.size(), " bytes",
                                  image.empty() ? "" : ", ", image, "\n"));
  }
  return Inspection{
      .text = absl::StrCat("images: ", Count(std::ssize(classes), "class folder"), " of ", least,
                           " to ", most, " files, ", FormatBytes(bytes), "; ", images,
                           " have the name of an image and ", others, " another\n",
                           absl::StrJoin(firsts, "")),
      .section = absl::StrCat("data:\n  images:\n    path: ", Quoted(path), "\n  image:\n",
                              "    train:\n      - random_resized_crop: {size: 224}\n",
                              "      - random_flip: {}\n    evaluate:\n",
                              "      - resize: {size: 256}\n      - center_crop: {size: 224}\n")};
}

}  // namespace

absl::StatusOr<Inspection> Inspect(const std::string& path, const InspectOptions& options) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    ASSIGN_OR_RETURN(const std::vector<std::string> folders, ListFolders(path, kField));
    // A folder of folders may have a list of its classes beside them.
    if (!folders.empty()) return InspectImages(path, folders, options);
  }
  ASSIGN_OR_RETURN(const std::vector<ListedFile> files, ListFiles(path, kField));
  // Files of one kind; a folder may also hold a README.
  const auto of_kind = [&](std::initializer_list<absl::string_view> extensions) {
    std::vector<ListedFile> kind;
    for (const ListedFile& file : files) {
      if (HasExtension(file.path, extensions)) kind.push_back(file);
    }
    return kind;
  };
  if (const auto tar = of_kind({".tar", ".tar.gz", ".tgz", ".tar.zst"}); !tar.empty()) {
    return InspectTar(path, tar, options);
  }
  if (const auto npz = of_kind({".npz"}); !npz.empty()) return InspectNpz(npz[0].path);
  if (const auto npy = of_kind({".npy"}); !npy.empty()) return InspectNpy(npy);
  if (const auto csv = of_kind({".csv", ".tsv"}); !csv.empty()) return InspectCsv(path, csv);
  if (IsImageName(files[0].path)) {
    ASSIGN_OR_RETURN(const std::string bytes, FirstBytes(files[0].path, kImageBytesMax));
    return Inspection{.text = absl::StrCat("an image of ", files[0].bytes,
                                           " bytes: ", DescribeImage(options, bytes),
                                           "\ndata.images reads a folder with a folder per class, "
                                           "or a list of images\n")};
  }
  if (IsTfrecord(files[0].path)) return InspectTfrecord(path, files, options);
  return absl::InvalidArgumentError(
      absl::StrCat(files[0].path,
                   ": the format is unknown; known are .tar, .npy, .npz, .csv, .tsv, TFRecord, and "
                   "a folder with a folder of images per class"));
}

}  // namespace muster::cli
