#include "lib/data/format/compression.h"

#include <array>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "lib/data/data_fault.h"
#include "lib/status/status.h"

namespace muster {
namespace {

struct CompressionEntry {
  Compression compression;
  absl::string_view name, magic, suffix;
  absl::string_view tool;  // decompresses formats that muster data convert cannot read
};

constexpr std::array<CompressionEntry, 5> kCompressions = {{
    {Compression::kGzip, "gzip", "\x1f\x8b", ".gz", ""},
    {Compression::kZstd, "zstd", "\x28\xb5\x2f\xfd", ".zst", ""},
    {Compression::kBzip2, "bzip2", "BZh", ".bz2", "bzip2 -dk"},
    {Compression::kXz, "xz", absl::string_view("\xfd\x37zXZ\0", 6), ".xz", "xz -dk"},
    {Compression::kLz4, "lz4", "\x04\x22\x4d\x18", ".lz4", "lz4 -d"},
}};
constexpr size_t kMagicBytesMax = 6;

const CompressionEntry* EntryOf(absl::Span<const std::byte> first) {
  const absl::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  for (const CompressionEntry& entry : kCompressions) {
    if (absl::StartsWith(text, entry.magic)) return &entry;
  }
  return nullptr;
}

}  // namespace

Compression CompressionOf(absl::Span<const std::byte> first) {
  const CompressionEntry* entry = EntryOf(first);
  return entry == nullptr ? Compression::kNone : entry->compression;
}

absl::string_view CompressionName(Compression compression) {
  for (const CompressionEntry& entry : kCompressions) {
    if (entry.compression == compression) return entry.name;
  }
  return "";
}

absl::Status CheckUncompressed(const DataFile& file, absl::string_view field) {
  std::array<std::byte, kMagicBytesMax> first;
  ASSIGN_OR_RETURN(const int64_t bytes, file.ReadSome(0, absl::MakeSpan(first)));
  return CheckUncompressed(absl::MakeConstSpan(first).first(bytes), file.path(), field);
}

absl::Status CheckUncompressed(absl::Span<const std::byte> first, absl::string_view path,
                               absl::string_view field) {
  const CompressionEntry* entry = EntryOf(first);
  if (entry == nullptr) return absl::OkStatus();
  absl::string_view out = path;
  if (!absl::ConsumeSuffix(&out, entry->suffix)) out = "OUT";
  const std::string command = entry->tool.empty()
                                  ? absl::StrCat("muster data convert ", path, " ", out)
                                  : absl::StrCat(entry->tool, " ", path);
  return DataInvalid(field, absl::StrCat(path, ": is compressed with ", entry->name,
                                         ", which has no random access; run: ", command));
}

}  // namespace muster
