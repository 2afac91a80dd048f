#include "lib/data/format/npz.h"

#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "lib/data/data_fault.h"
#include "lib/data/format/compression.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kDirectoryEntry = 0x02014b50;
constexpr uint32_t kDirectoryEnd = 0x06054b50;
constexpr uint32_t kDirectoryEnd64 = 0x06064b50;
constexpr uint32_t kDirectoryEnd64Locator = 0x07064b50;
constexpr int64_t kLocalHeaderBytes = 30;
constexpr int64_t kDirectoryEntryBytes = 46;
constexpr int64_t kDirectoryEndBytes = 22;
constexpr int64_t kDirectoryEnd64Bytes = 56;
constexpr int64_t kLocatorBytes = 20;
constexpr int64_t kCommentBytesMax = 0xffff;
constexpr uint16_t kEncrypted = 1;
constexpr uint16_t kZip64Extra = 1;
constexpr uint16_t kSaturated16 = 0xffff;
constexpr uint32_t kSaturated32 = 0xffffffff;
// A directory of half a million members, which no training job has.
constexpr int64_t kDirectoryBytesMax = int64_t{64} << 20;
// Members up to this size are read when they are found, so that their CRC can be checked.
constexpr int64_t kCheckedBytesMax = int64_t{1} << 20;
constexpr size_t kNamesShown = 20;

// Reads little-endian numbers. The caller checks that they are within the bytes.
class Fields {
 public:
  explicit Fields(absl::Span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t Number(size_t at, size_t size) const {
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i) {
      value |= std::to_integer<uint64_t>(bytes_[at + i]) << (8 * i);
    }
    return value;
  }
  uint16_t U16(size_t at) const { return static_cast<uint16_t>(Number(at, 2)); }
  uint32_t U32(size_t at) const { return static_cast<uint32_t>(Number(at, 4)); }
  uint64_t U64(size_t at) const { return Number(at, 8); }

 private:
  absl::Span<const std::byte> bytes_;
};

std::string Shown(absl::string_view name) {
  return absl::StrCat("'", absl::Utf8SafeCEscape(name.substr(0, 100)), "'");
}

// Holds where the directory is.
struct Directory {
  uint64_t entries = 0, bytes = 0, offset = 0;
  int64_t end = 0;  // the offset of the record that says so
};

class DirectoryReader {
 public:
  DirectoryReader(const DataFile& file, absl::string_view field) : file_(file), field_(field) {}

  absl::StatusOr<std::vector<ZipMember>> Read() const {
    ASSIGN_OR_RETURN(const Directory directory, Find());
    if (directory.bytes > static_cast<uint64_t>(kDirectoryBytesMax)) {
      return Invalid(absl::StrCat("a directory of ", directory.bytes, " bytes, at most ",
                                  kDirectoryBytesMax, " are possible"));
    }
    // Bytes before the archive would shift every offset.
    if (directory.offset > static_cast<uint64_t>(directory.end) ||
        directory.bytes != directory.end - directory.offset) {
      return Invalid("the directory of the archive is not where it should be");
    }
    if (directory.entries > directory.bytes / kDirectoryEntryBytes) {
      return Invalid(absl::StrCat(directory.entries, " members in a directory of ", directory.bytes,
                                  " bytes"));
    }
    std::vector<std::byte> bytes(directory.bytes);
    RETURN_IF_ERROR(file_.Read(directory.offset, absl::MakeSpan(bytes)));
    std::vector<ZipMember> members;
    absl::Span<const std::byte> rest = bytes;
    for (uint64_t i = 0; i < directory.entries; ++i) {
      ASSIGN_OR_RETURN(ZipMember member, ReadEntry(rest, directory.end - std::ssize(rest)));
      members.push_back(std::move(member));
    }
    if (!rest.empty()) return Invalid("bytes follow the last member of the directory");
    RETURN_IF_ERROR(CheckPlaces(members, directory.offset));
    return members;
  }

 private:
  absl::Status Invalid(absl::string_view message) const {
    return DataInvalid(field_, absl::StrCat(file_.path(), ": ", message));
  }

  absl::StatusOr<Directory> Find() const {
    const int64_t bytes = std::min<int64_t>(file_.bytes(), kDirectoryEndBytes + kCommentBytesMax);
    std::vector<std::byte> tail(bytes);
    RETURN_IF_ERROR(file_.Read(file_.bytes() - bytes, absl::MakeSpan(tail)));
    const Fields fields(tail);
    for (int64_t at = bytes - kDirectoryEndBytes; at >= 0; --at) {
      if (fields.U32(at) != kDirectoryEnd) continue;
      if (at + kDirectoryEndBytes + fields.U16(at + 20) != bytes) continue;  // the comment
      Directory directory{.entries = fields.U16(at + 10),
                          .bytes = fields.U32(at + 12),
                          .offset = fields.U32(at + 16),
                          .end = file_.bytes() - bytes + at};
      if (fields.U16(at + 4) != 0 && fields.U16(at + 4) != kSaturated16) {
        return Invalid("an archive of several parts");
      }
      if (directory.entries != kSaturated16 && directory.bytes != kSaturated32 &&
          directory.offset != kSaturated32) {
        return directory;
      }
      return Find64(directory.end);
    }
    return DataTruncated(field_, absl::StrCat(file_.path(), ": lacks the directory at its end; is ",
                                              "it a complete .npz file?"));
  }

  // Reads the record with larger numbers, which a locator before `end` names.
  absl::StatusOr<Directory> Find64(int64_t end) const {
    const int64_t at = end - kLocatorBytes;
    if (at < kDirectoryEnd64Bytes) return Invalid("lacks its zip64 record");
    std::byte locator[kLocatorBytes];
    RETURN_IF_ERROR(file_.Read(at, locator));
    const uint64_t offset = Fields(locator).U64(8);
    if (Fields(locator).U32(0) != kDirectoryEnd64Locator ||
        offset > static_cast<uint64_t>(at - kDirectoryEnd64Bytes)) {
      return Invalid("lacks its zip64 record");
    }
    std::byte record[kDirectoryEnd64Bytes];
    RETURN_IF_ERROR(file_.Read(offset, record));
    const Fields fields(record);
    if (fields.U32(0) != kDirectoryEnd64) return Invalid("lacks its zip64 record");
    return Directory{.entries = fields.U64(32),
                     .bytes = fields.U64(40),
                     .offset = fields.U64(48),
                     .end = static_cast<int64_t>(offset)};
  }

  // Takes the next entry from `rest`, which is at this offset of the file.
  absl::StatusOr<ZipMember> ReadEntry(absl::Span<const std::byte>& rest,
                                      int64_t offset_of_entry) const {
    const auto unreadable = [&] {
      return Invalid(
          absl::StrCat("the directory of the archive cannot be read at byte ", offset_of_entry));
    };
    const Fields fields(rest);
    if (std::ssize(rest) < kDirectoryEntryBytes || fields.U32(0) != kDirectoryEntry) {
      return unreadable();
    }
    const size_t name_bytes = fields.U16(28), extra_bytes = fields.U16(30);
    const size_t bytes = kDirectoryEntryBytes + name_bytes + extra_bytes + fields.U16(32);
    if (bytes > rest.size()) return unreadable();
    ZipMember member{.flags = fields.U16(8), .method = fields.U16(10), .crc = fields.U32(16)};
    const auto* text = reinterpret_cast<const char*>(rest.data());
    member.name.assign(text + kDirectoryEntryBytes, name_bytes);
    uint64_t content = fields.U32(24), stored = fields.U32(20), offset = fields.U32(42);
    const auto extra = rest.subspan(kDirectoryEntryBytes + name_bytes, extra_bytes);
    if (!TakeZip64(extra, {&content, &stored, &offset})) {
      return Invalid(absl::StrCat("member ", Shown(member.name), " lacks its zip64 numbers"));
    }
    // The archive is smaller than this, so sums of the numbers do not overflow.
    const auto limit = static_cast<uint64_t>(file_.bytes());
    if (stored > limit || offset > limit || content > uint64_t{1} << 60) {
      return Invalid(absl::StrCat("member ", Shown(member.name), " is outside the file"));
    }
    member.bytes = content;
    member.stored_bytes = stored;
    member.header_offset = offset;
    rest.remove_prefix(bytes);
    return member;
  }

  // Replaces saturated numbers by those of the zip64 field. Returns false if it lacks them.
  static bool TakeZip64(absl::Span<const std::byte> extra, std::vector<uint64_t*> numbers) {
    numbers.erase(std::remove_if(numbers.begin(), numbers.end(),
                                 [](const uint64_t* number) { return *number != kSaturated32; }),
                  numbers.end());
    if (numbers.empty()) return true;
    while (extra.size() >= 4) {
      const uint16_t kind = Fields(extra).U16(0);
      const size_t size = Fields(extra).U16(2);
      extra.remove_prefix(4);
      if (size > extra.size()) return false;
      if (kind == kZip64Extra) {
        if (size < 8 * numbers.size()) return false;
        for (size_t i = 0; i < numbers.size(); ++i) *numbers[i] = Fields(extra).U64(8 * i);
        return true;
      }
      extra.remove_prefix(size);
    }
    return false;
  }

  // Sorts the members, and checks that they do not overlap and end before `limit`.
  absl::Status CheckPlaces(std::vector<ZipMember>& members, int64_t limit) const {
    std::sort(members.begin(), members.end(), [](const ZipMember& a, const ZipMember& b) {
      return a.header_offset < b.header_offset;
    });
    std::vector<absl::string_view> names;
    for (size_t i = 0; i < members.size(); ++i) {
      ZipMember& member = members[i];
      member.limit = i + 1 < members.size() ? members[i + 1].header_offset : limit;
      const int64_t header = kLocalHeaderBytes + std::ssize(member.name);
      if (member.header_offset + header + member.stored_bytes > member.limit) {
        return Invalid(absl::StrCat("member ", Shown(member.name),
                                    " overlaps what follows it in the archive"));
      }
      names.push_back(member.name);
    }
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) {
      return Invalid(absl::StrCat("has two members with the name ", Shown(*twice)));
    }
    return absl::OkStatus();
  }

  const DataFile& file_;
  const absl::string_view field_;
};

}  // namespace

absl::Status CheckCrc(uint32_t expected, absl::Span<const std::byte> bytes,
                      const std::string& place, int64_t offset, absl::string_view field) {
  const auto* data = reinterpret_cast<const Bytef*>(bytes.data());
  if (crc32_z(0, data, bytes.size()) == expected) return absl::OkStatus();
  return DataDamaged(field, place, /*record=*/-1, offset, "the CRC differs");
}

absl::StatusOr<NpzFile> NpzFile::Open(const std::string& path, absl::string_view field) {
  ASSIGN_OR_RETURN(std::shared_ptr<const DataFile> file, DataFile::Open(path, field));
  RETURN_IF_ERROR(CheckUncompressed(*file, field));
  ASSIGN_OR_RETURN(std::vector<ZipMember> members, DirectoryReader(*file, field).Read());
  return NpzFile(std::move(file), std::move(members));
}

std::string NpzFile::PlaceOf(absl::string_view name) const {
  return absl::StrCat(file_->path(), ": array ", Shown(name));
}

absl::StatusOr<int64_t> NpzFile::ContentOffset(const ZipMember& member,
                                               absl::string_view field) const {
  auto invalid = [&](absl::string_view message) {
    return DataInvalid(field,
                       absl::StrCat(file_->path(), ": member ", Shown(member.name), ": ", message));
  };
  if ((member.flags & kEncrypted) != 0) return invalid("is encrypted");
  std::vector<std::byte> header(kLocalHeaderBytes + member.name.size());
  RETURN_IF_ERROR(file_->Read(member.header_offset, absl::MakeSpan(header)));
  const Fields fields(header);
  const absl::string_view name(reinterpret_cast<const char*>(header.data()) + kLocalHeaderBytes,
                               member.name.size());
  if (fields.U32(0) != kLocalHeader || fields.U16(26) != member.name.size() ||
      name != member.name || fields.U16(8) != member.method) {
    return invalid("its header differs from the directory");
  }
  const int64_t offset = member.header_offset + std::ssize(header) + fields.U16(28);
  if (offset + member.stored_bytes > member.limit) {
    return invalid("overlaps what follows it in the archive");
  }
  return offset;
}

absl::StatusOr<NpzFile::Array> NpzFile::Find(absl::string_view name,
                                             absl::string_view field) const {
  const auto member = std::find_if(members_.begin(), members_.end(), [&](const ZipMember& member) {
    return member.name == absl::StrCat(name, ".npy");
  });
  if (member == members_.end()) {
    std::vector<std::string> names;
    for (const ZipMember& other : members_) {
      absl::string_view known = other.name;
      if (absl::ConsumeSuffix(&known, ".npy")) names.push_back(Shown(known));
    }
    const size_t count = names.size();
    names.resize(std::min(count, kNamesShown));
    return DataInvalid(field,
                       absl::StrCat(file_->path(), ": has no array ", Shown(name), "; it has ",
                                    absl::StrJoin(names, ", "), count > kNamesShown ? ", ..." : "",
                                    count == 0 ? "none" : ""));
  }
  const std::string place = PlaceOf(name);
  if (!member->is_stored()) {
    absl::string_view stem = file_->path();
    absl::ConsumeSuffix(&stem, ".npz");
    return DataInvalid(field, absl::StrCat(place,
                                           " is compressed, so it has no random access; "
                                           "run: muster data convert ",
                                           file_->path(), " ", stem, ".stored.npz"));
  }
  if (member->bytes != member->stored_bytes) {
    return DataInvalid(field, absl::StrCat(place, ": ", member->stored_bytes,
                                           " bytes in the archive for ", member->bytes));
  }
  Array array{.bytes = member->bytes, .crc = member->crc};
  ASSIGN_OR_RETURN(array.offset, ContentOffset(*member, field));
  const bool is_checked = array.bytes <= kCheckedBytesMax;
  std::vector<std::byte> first(is_checked ? array.bytes
                                          : std::min<int64_t>(array.bytes, kNpyFirstBytes));
  RETURN_IF_ERROR(file_->Read(array.offset, absl::MakeSpan(first)));
  if (is_checked) RETURN_IF_ERROR(CheckCrc(array.crc, first, place, array.offset, field));
  ASSIGN_OR_RETURN(array.header, ReadNpyHeader(first, array.bytes, place, field));
  array.header.data_offset += array.offset;
  return array;
}

}  // namespace muster
