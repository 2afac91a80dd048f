#include "lib/data/source/sample_files.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "lib/data/data_fault.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFilesMax = 3;       // that are opened
constexpr int kEntriesMax = 100'000;  // of folders that are looked at
constexpr int kPatternsMax = 64;      // after braces are expanded
constexpr size_t kStartBytes = 4096;
constexpr size_t kTarBlockBytes = 512;
constexpr int64_t kRecordBytesMax = int64_t{1} << 30;
constexpr size_t kRecordHeaderBytes = 12;  // a length in 8 bytes, its checksum in 4

// Replaces each group of braces: a list by each of its texts, a range of numbers by its first.
// Returns at most kPatternsMax patterns, and takes no time for the others.
std::vector<std::string> ExpandBraces(const std::string& pattern) {
  const size_t open = pattern.find('{');
  const size_t close = open == pattern.npos ? pattern.npos : pattern.find('}', open);
  if (close == pattern.npos) return {pattern};
  const std::string group = pattern.substr(open + 1, close - open - 1);
  std::vector<std::string> expanded;
  for (const absl::string_view text : absl::StrSplit(group.substr(0, group.find("..")), ',')) {
    for (std::string& whole :
         ExpandBraces(absl::StrCat(pattern.substr(0, open), text, pattern.substr(close + 1)))) {
      if (expanded.size() == kPatternsMax) return expanded;
      expanded.push_back(std::move(whole));
    }
    if (expanded.size() == kPatternsMax) return expanded;
  }
  return expanded;
}

bool HasWildcards(const std::string& text) { return text.find_first_of("*?") != text.npos; }

// Finds a few regular files.
class Search {
 public:
  // `extension` is that of the files of folders, without wildcards.
  explicit Search(absl::string_view extension) : extension_(extension) {}

  void InFolder(const fs::path& folder) { Matches(folder, {absl::StrCat("*", extension_)}); }

  void OfPattern(const std::string& pattern) {
    for (const std::string& path : ExpandBraces(pattern)) {
      const std::vector<std::string> parts = absl::StrSplit(path, '/', absl::SkipEmpty());
      Matches(absl::StartsWith(path, "/") ? "/" : ".", parts);
    }
  }

  const std::vector<std::string>& found() const { return found_; }
  bool ended_early() const { return entries_left_ <= 0; }

 private:
  // Finds what `parts` match below `folder`.
  void Matches(const fs::path& folder, absl::Span<const std::string> parts) {
    std::error_code error;
    if (found_.size() == kFilesMax || ended_early()) return;
    if (parts.empty()) {
      if (fs::is_regular_file(folder, error)) found_.push_back(folder.string());
      if (fs::is_directory(folder, error)) InFolder(folder);
      return;
    }
    if (!HasWildcards(parts[0])) return Matches(folder / parts[0], parts.subspan(1));
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
      if (found_.size() == kFilesMax || --entries_left_ <= 0) return;
      const std::string name = entry->path().filename().string();
      if (fnmatch(parts[0].c_str(), name.c_str(), FNM_PERIOD) != 0) continue;
      // A folder that a wildcard names does not stand for its files.
      std::error_code unknown;
      if (parts.size() == 1 && !entry->is_regular_file(unknown)) continue;
      Matches(entry->path(), parts.subspan(1));
    }
  }

  const absl::string_view extension_;
  std::vector<std::string> found_;
  int entries_left_ = kEntriesMax;
};

// Reads a little-endian number.
uint64_t Number(absl::Span<const std::byte> bytes) {
  uint64_t number = 0;
  for (size_t i = bytes.size(); i > 0; --i) {
    number = number << 8 | std::to_integer<uint64_t>(bytes[i - 1]);
  }
  return number;
}

absl::StatusOr<std::vector<std::byte>> ReadStart(const DataFile& file) {
  std::vector<std::byte> start(kStartBytes);
  ASSIGN_OR_RETURN(const int64_t bytes, file.ReadSome(0, absl::MakeSpan(start)));
  start.resize(bytes);
  return start;
}

bool StartsWithBytes(absl::Span<const std::byte> bytes, absl::string_view start) {
  return bytes.size() >= start.size() && std::memcmp(bytes.data(), start.data(), start.size()) == 0;
}

absl::Status Wrong(const DataFile& file, absl::string_view field, absl::string_view format,
                   absl::string_view why, absl::Span<const std::byte> start) {
  if (StartsWithBytes(start, "\x1f\x8b")) {
    return DataInvalid(field, absl::StrCat(file.path(),
                                           ": is compressed with gzip, and samples are "
                                           "read by position; run: gunzip ",
                                           file.path()));
  }
  if (StartsWithBytes(start, "\x28\xb5\x2f\xfd")) {
    return DataInvalid(field, absl::StrCat(file.path(),
                                           ": is compressed with zstd, and samples are "
                                           "read by position; run: unzstd ",
                                           file.path()));
  }
  return DataInvalid(field, absl::StrCat(file.path(), ": is no ", format, ": ", why));
}

// Checks all of them, or one if the path is a folder.
absl::Status CheckFiles(absl::Span<const std::string> paths, bool is_folder,
                        absl::string_view field,
                        absl::Status (*check)(const DataFile&, absl::string_view)) {
  absl::Status first;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const auto file, DataFile::Open(path, field));
    const absl::Status status = check(*file, field);
    if (status.ok() && is_folder) return status;
    first.Update(status);
  }
  return first;
}

}  // namespace

absl::Status CheckTfrecordStart(const DataFile& file, absl::string_view field) {
  ASSIGN_OR_RETURN(const std::vector<std::byte> start, ReadStart(file));
  if (start.empty()) return absl::OkStatus();
  const auto wrong = [&](absl::string_view why) {
    return Wrong(file, field, "TFRecord file", why, start);
  };
  if (start.size() < kRecordHeaderBytes) return wrong("it ends in the header of its first record");
  const auto header = absl::MakeConstSpan(start).first(kRecordHeaderBytes);
  const auto length = header.first(sizeof(uint64_t));
  const uint32_t crc = Crc32c(length);
  const uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  if (Number(header.subspan(length.size())) != masked) {
    return wrong("the checksum of the first record's length differs");
  }
  if (Number(length) > static_cast<uint64_t>(kRecordBytesMax)) {
    return wrong(absl::StrCat("its first record has more than ", kRecordBytesMax, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckTarStart(const DataFile& file, absl::string_view field) {
  constexpr size_t kSumAt = 148, kSumBytes = 8;
  ASSIGN_OR_RETURN(const std::vector<std::byte> start, ReadStart(file));
  if (start.empty()) return absl::OkStatus();
  if (start.size() < kTarBlockBytes) {
    return Wrong(file, field, "tar file", "it is shorter than a header", start);
  }
  int64_t sum = 0;
  bool is_end = true;
  for (size_t i = 0; i < kTarBlockBytes; ++i) {
    const bool is_sum = i >= kSumAt && i < kSumAt + kSumBytes;
    sum += is_sum ? ' ' : std::to_integer<int>(start[i]);
    is_end &= start[i] == std::byte{0};
  }
  if (is_end) return absl::OkStatus();
  int64_t stored = 0;
  for (size_t i = kSumAt; i < kSumAt + kSumBytes; ++i) {
    const int digit = std::to_integer<int>(start[i]);
    if (digit >= '0' && digit <= '7') stored = stored * 8 + (digit - '0');
  }
  if (stored == sum) return absl::OkStatus();
  return Wrong(file, field, "tar file", "the checksum of its first header differs", start);
}

absl::Status CheckZipStart(const DataFile& file, absl::string_view field) {
  ASSIGN_OR_RETURN(const std::vector<std::byte> start, ReadStart(file));
  if (start.empty() || StartsWithBytes(start, "PK\x03\x04") ||
      StartsWithBytes(start, "PK\x05\x06")) {
    return absl::OkStatus();
  }
  return Wrong(file, field, ".npz file", "it does not begin as a zip archive", start);
}

absl::Status CheckTextStart(const DataFile& file, absl::string_view field) {
  ASSIGN_OR_RETURN(const std::vector<std::byte> start, ReadStart(file));
  if (std::ranges::find(start, std::byte{0}) == start.end() &&
      !StartsWithBytes(start, "\x1f\x8b") && !StartsWithBytes(start, "\x28\xb5\x2f\xfd")) {
    return absl::OkStatus();
  }
  return Wrong(file, field, "text file", "it has a byte 0 near its beginning", start);
}

absl::Status CheckSampleFiles(const std::string& path, absl::string_view field,
                              absl::string_view extension,
                              absl::Status (*check)(const DataFile&, absl::string_view)) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  const bool is_pattern = !fs::exists(status) && path.find_first_of("*?{") != path.npos;
  if (is_pattern) {
    Search search(extension);
    search.OfPattern(path);
    if (search.found().empty() && search.ended_early()) return absl::OkStatus();
    if (search.found().empty()) {
      return AtField(
          WithReason(absl::NotFoundError(absl::StrCat(path, ": matches no regular file")),
                     "DATA_NOT_FOUND"),
          field);
    }
    return CheckFiles(search.found(), /*is_folder=*/false, field, check);
  }
  if (!fs::is_directory(status)) return CheckFiles({path}, /*is_folder=*/false, field, check);
  Search search(extension);
  search.InFolder(path);
  if (search.found().empty() && !search.ended_early()) {
    const absl::string_view kind = extension.empty() ? "regular" : extension;
    return DataTooSmall(field, absl::StrCat(path, ": the folder holds no ", kind, " file"));
  }
  return CheckFiles(search.found(), /*is_folder=*/true, field, check);
}

}  // namespace muster
