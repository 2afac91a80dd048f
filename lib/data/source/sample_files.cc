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
#include "lib/data/file/file_list.h"
#include "lib/data/format/compression.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFilesMax = 3;        // that are opened
constexpr int kEntriesMax = 100'000;   // of folders that are looked at
constexpr size_t kPatternsMax = 4096;  // after braces are expanded; others are not looked at
constexpr size_t kStartBytes = 4096;
constexpr size_t kTarBlockBytes = 512;
constexpr int64_t kRecordBytesMax = int64_t{1} << 30;
constexpr size_t kRecordHeaderBytes = 12;  // a length in 8 bytes, its checksum in 4

bool HasWildcards(const std::string& text) { return text.find_first_of("*?") != text.npos; }

// Finds a few regular files.
class Search {
 public:
  // `extension` is that of the files of folders, without wildcards.
  explicit Search(absl::string_view extension) : extension_(extension) {}

  void InFolder(const fs::path& folder) { Matches(folder, {absl::StrCat("*", extension_)}); }

  // `pattern` has no braces. Returns false if it is certain that no file matches.
  bool OfPattern(const std::string& pattern) {
    hidden_error_.clear();
    if (found_.size() == kFilesMax) {
      std::error_code unknown;
      if (HasWildcards(pattern) || fs::exists(fs::status(pattern, unknown))) return true;
      Note(pattern, unknown);
      return false;
    }
    const size_t before = found_.size();
    const std::vector<std::string> parts = absl::StrSplit(pattern, '/', absl::SkipEmpty());
    Matches(absl::StartsWith(pattern, "/") ? "/" : ".", parts);
    return found_.size() > before || ended_early();
  }

  const std::vector<std::string>& found() const { return found_; }
  bool ended_early() const { return entries_left_ <= 0; }

  // Returns the last error that hid files, or OK.
  absl::Status Hidden(absl::string_view field) const {
    if (!hidden_error_) return absl::OkStatus();
    return DataPathFault(field, hidden_, hidden_error_.value());
  }

 private:
  // Finds what `parts` match below `folder`.
  void Matches(const fs::path& folder, absl::Span<const std::string> parts) {
    std::error_code error;
    if (found_.size() == kFilesMax || ended_early()) return;
    if (parts.empty()) {
      const fs::file_status status = fs::status(folder, error);
      if (fs::is_regular_file(status)) found_.push_back(folder.string());
      if (fs::is_directory(status)) InFolder(folder);
      return Note(folder, error);
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
    Note(folder, error);
  }

  void Note(const fs::path& path, std::error_code error) {
    if (!error || error == std::errc::no_such_file_or_directory ||
        error == std::errc::not_a_directory) {
      return;
    }
    hidden_ = path.string();
    hidden_error_ = error;
  }

  const absl::string_view extension_;
  std::vector<std::string> found_;
  int entries_left_ = kEntriesMax;
  std::string hidden_;
  std::error_code hidden_error_;
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
  RETURN_IF_ERROR(CheckUncompressed(start, file.path(), field));
  return DataInvalid(field, absl::StrCat(file.path(), ": is no ", format, ": ", why));
}

// Checks all of them, or one if the path is a folder.
absl::Status CheckFiles(absl::Span<const std::string> paths, bool is_folder,
                        absl::string_view field, SampleFileCheck check) {
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
  if (StartsWithBytes(start, "PK\x03\x04") || StartsWithBytes(start, "PK\x05\x06")) {
    return absl::OkStatus();
  }
  return Wrong(file, field, ".npz file", "it does not begin as a zip archive", start);
}

absl::Status CheckTextStart(const DataFile& file, absl::string_view field) {
  ASSIGN_OR_RETURN(const std::vector<std::byte> start, ReadStart(file));
  RETURN_IF_ERROR(CheckUncompressed(start, file.path(), field));
  if (std::ranges::find(start, std::byte{0}) == start.end()) return absl::OkStatus();
  return Wrong(file, field, "text file", "it has a byte 0 near its beginning", start);
}

absl::Status CheckSampleFiles(const std::string& path, absl::string_view field,
                              absl::string_view extension, SampleFileCheck check) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  const bool is_pattern = !fs::exists(status) && path.find_first_of("*?{") != path.npos;
  Search search(extension);
  if (is_pattern) {
    ASSIGN_OR_RETURN(std::vector<std::string> patterns, ExpandBraces(path, field));
    if (patterns.size() > kPatternsMax) patterns.resize(kPatternsMax);
    for (const std::string& pattern : patterns) {
      if (search.OfPattern(pattern)) continue;
      RETURN_IF_ERROR(search.Hidden(field));
      return AtField(
          WithReason(absl::NotFoundError(absl::StrCat(pattern, ": matches no regular file")),
                     "DATA_NOT_FOUND"),
          field);
    }
    return CheckFiles(search.found(), /*is_folder=*/false, field, check);
  }
  if (!fs::is_directory(status)) return CheckFiles({path}, /*is_folder=*/false, field, check);
  search.InFolder(path);
  if (search.found().empty() && !search.ended_early()) {
    RETURN_IF_ERROR(search.Hidden(field));
    const absl::string_view kind = extension.empty() ? "regular" : extension;
    return DataTooSmall(field, absl::StrCat(path, ": the folder holds no ", kind, " file"));
  }
  return CheckFiles(search.found(), /*is_folder=*/true, field, check);
}

}  // namespace muster
