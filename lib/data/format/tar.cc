#include "lib/data/format/tar.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/data/data_fault.h"
#include "lib/data/format/compression.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kTarBlockBytes = 512;
// A read costs as much as a copy of about 4 KiB. Small pieces still hold the headers of a label's
// member and of the next image.
constexpr int64_t kTarSmallPiece = 4 * kTarBlockBytes;
constexpr int64_t kTarDenseGap = 4096;
constexpr int64_t kTarLargePiece = 256 << 10;
constexpr int64_t kExtensionBytesMax = 1 << 20;

// The fields of a header.
struct TarField {
  size_t offset;
  size_t bytes;
  absl::string_view of(absl::string_view block) const { return block.substr(offset, bytes); }
};
constexpr TarField kTarName{0, 100};
constexpr TarField kTarSize{124, 12};
constexpr TarField kTarChecksum{148, 8};
constexpr size_t kTarKindOffset = 156;
constexpr TarField kTarMagic{257, 8};
constexpr TarField kTarPrefix{345, 155};

absl::string_view UntilNul(absl::string_view text) { return text.substr(0, text.find('\0')); }

bool IsZeroBlock(absl::string_view block) {
  return block[0] == '\0' && std::memcmp(block.data(), block.data() + 1, block.size() - 1) == 0;
}

// Returns the number of a field: octal digits, or bytes if the first bit is set. nullopt if it is
// neither, is negative, or does not fit.
std::optional<int64_t> TarNumber(absl::string_view text) {
  uint64_t number = 0;
  if (static_cast<unsigned char>(text[0]) & 0x80) {
    if (static_cast<unsigned char>(text[0]) != 0x80) return std::nullopt;
    for (const char c : text.substr(1)) {
      if (number >> 55) return std::nullopt;
      number = number << 8 | static_cast<unsigned char>(c);
    }
    return static_cast<int64_t>(number);
  }
  size_t i = 0;
  while (i < text.size() && text[i] == ' ') ++i;
  for (; i < text.size() && '0' <= text[i] && text[i] <= '7'; ++i) {
    number = number << 3 | static_cast<uint64_t>(text[i] - '0');  // 12 digits are 36 bits
  }
  for (; i < text.size(); ++i) {
    if (text[i] != ' ' && text[i] != '\0') return std::nullopt;
  }
  return static_cast<int64_t>(number);
}

// Returns the sum of a header's bytes.
int64_t SumOfBytes(absl::string_view block) {
  constexpr uint64_t kEven = 0x00ff00ff00ff00ff;
  uint64_t sums = 0;  // four of 16 bits; each is at most 128 * 255
  for (int64_t at = 0; at < kTarBlockBytes; at += 8) {
    uint64_t word;
    std::memcpy(&word, block.data() + at, sizeof(word));
    sums += (word & kEven) + (word >> 8 & kEven);
  }
  int64_t sum = 0;
  for (; sums != 0; sums >>= 16) sum += static_cast<int64_t>(sums & 0xffff);
  return sum;
}

// Returns whether the sum of the header's bytes is right, with the field of the sum as spaces. Old
// programs added them as signed numbers.
bool HasRightChecksum(absl::string_view block) {
  const std::optional<int64_t> expected = TarNumber(kTarChecksum.of(block));
  if (!expected) return false;
  int64_t sum = SumOfBytes(block);
  for (const char c : kTarChecksum.of(block)) sum += ' ' - static_cast<unsigned char>(c);
  if (*expected == sum) return true;
  for (size_t i = 0; i < block.size(); ++i) {
    const bool is_in_field = i - kTarChecksum.offset < kTarChecksum.bytes;
    if (!is_in_field && static_cast<unsigned char>(block[i]) >= 128) sum -= 256;
  }
  return *expected == sum;
}

// Returns whether members of this kind have bytes in the archive. The size of a link is that of its
// target.
bool KindHasBytes(char kind) { return kind < '1' || kind > '6'; }

bool IsRegularKind(char kind) { return kind == '0' || kind == '\0' || kind == '7'; }

}  // namespace

TarReader::TarReader(std::shared_ptr<const DataFile> file, absl::string_view field)
    : file_(std::move(file)),
      field_(field),
      buffer_(kTarLargePiece),
      piece_bytes_(kTarSmallPiece) {}

absl::Status TarReader::Damaged(absl::string_view message) const {
  return DataDamaged(field_, file_->path(), number_, header_, message);
}

absl::StatusOr<absl::string_view> TarReader::ReadBlock() {
  int64_t start = position_ - buffer_offset_;
  if (start >= 0 && start + kTarBlockBytes <= buffer_bytes_) {
    has_near_header_ = has_near_header_ || start > 0;
  } else {
    // Headers that follow the last piece closely are read in larger and larger pieces. After a
    // large member, a piece has more than a header if that helped the last time.
    const bool is_dense = start < buffer_bytes_ + kTarDenseGap;
    piece_bytes_ = is_dense           ? std::min(2 * piece_bytes_, kTarLargePiece)
                   : has_near_header_ ? kTarSmallPiece
                                      : kTarBlockBytes;
    has_near_header_ = is_dense;
    ASSIGN_OR_RETURN(buffer_bytes_,
                     file_->ReadSome(position_, absl::MakeSpan(buffer_.data(), piece_bytes_)));
    buffer_offset_ = position_;
    start = 0;
  }
  return absl::string_view(reinterpret_cast<const char*>(buffer_.data()) + start,
                           std::min(kTarBlockBytes, buffer_bytes_ - start));
}

absl::StatusOr<std::string> TarReader::ReadBytes(const TarMember& member) const {
  std::string bytes(member.bytes, '\0');
  const int64_t start = member.offset - buffer_offset_;
  if (start >= 0 && member.bytes <= buffer_bytes_ - start) {
    std::memcpy(bytes.data(), buffer_.data() + start, member.bytes);
    return bytes;
  }
  RETURN_IF_ERROR(file_->Read(
      member.offset, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size())));
  return bytes;
}

absl::Status TarReader::CheckInside(int64_t bytes) const {
  if (position_ <= file_->bytes() && bytes <= file_->bytes() - position_) return absl::OkStatus();
  return DataTruncated(
      field_, absl::StrCat(file_->path(), ": member ", number_, " at byte ", header_, " has ",
                           bytes, " bytes, but the file ends at byte ", file_->bytes()));
}

absl::StatusOr<std::string> TarReader::ReadText(int64_t bytes) {
  if (bytes > kExtensionBytesMax) {
    return Damaged(absl::StrCat("an extended header of ", bytes, " bytes; at most ",
                                kExtensionBytesMax, " are possible"));
  }
  std::string text(bytes, '\0');
  RETURN_IF_ERROR(
      file_->Read(position_, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), bytes)));
  return text;
}

absl::Status TarReader::ReadRecords(absl::string_view text, char kind) {
  // A record is "LENGTH KEY=VALUE\n"; the length is that of the whole record.
  while (!text.empty()) {
    const size_t space = text.find(' ');
    size_t length = 0;
    if (space == absl::string_view::npos || !absl::SimpleAtoi(text.substr(0, space), &length) ||
        length > text.size() || length < space + 2 || text[length - 1] != '\n') {
      return Damaged("a pax record has a wrong length");
    }
    const absl::string_view record = text.substr(space + 1, length - space - 2);
    text.remove_prefix(length);
    const size_t equals = record.find('=');
    if (equals == absl::string_view::npos) return Damaged("a pax record has no '='");
    const absl::string_view key = record.substr(0, equals);
    const absl::string_view value = record.substr(equals + 1);
    extension_.is_sparse |= absl::StartsWith(key, "GNU.sparse.");
    if (key != "path" && key != "size") continue;
    if (kind == 'g') {
      return Damaged(absl::StrCat("a global pax header sets the ", key, " of all members"));
    }
    if (key == "path") {
      extension_.path = std::string(value);
    } else {
      int64_t size = 0;
      if (value.empty() || value.find_first_not_of("0123456789") != absl::string_view::npos ||
          !absl::SimpleAtoi(value, &size)) {
        return Damaged(absl::StrCat("the size '", value.substr(0, 40), "' is no number"));
      }
      extension_.size = size;
    }
  }
  return absl::OkStatus();
}

absl::Status TarReader::ReadExtension(char kind, int64_t bytes) {
  if (kind == 'K') return absl::OkStatus();  // the name of a link's target
  ASSIGN_OR_RETURN(const std::string text, ReadText(bytes));
  if (kind != 'g') is_extended_ = true;
  if (kind != 'L') return ReadRecords(text, kind);
  extension_.long_name = std::string(UntilNul(text));
  return absl::OkStatus();
}

absl::string_view TarReader::NameOf(absl::string_view block) {
  if (extension_.path) return name_ = *std::move(extension_.path);
  if (extension_.long_name) return name_ = *std::move(extension_.long_name);
  const absl::string_view name = UntilNul(kTarName.of(block));
  // GNU's own format has other fields in place of the prefix.
  if (kTarMagic.of(block).substr(0, 6) != absl::string_view("ustar\0", 6)) return name;
  const absl::string_view prefix = UntilNul(kTarPrefix.of(block));
  if (prefix.empty()) return name;
  return name_ = absl::StrCat(prefix, "/", name);
}

absl::StatusOr<std::optional<TarMember>> TarReader::Next() {
  if (position_ == 0) RETURN_IF_ERROR(CheckUncompressed(*file_, field_));
  while (true) {
    header_ = position_;
    ASSIGN_OR_RETURN(const absl::string_view block, ReadBlock());
    if (block.empty() && has_end_) return std::nullopt;
    const bool is_zero = !block.empty() && IsZeroBlock(block);
    if (is_zero && (has_end_ || std::ssize(block) == kTarBlockBytes)) {
      if (is_extended_) return Damaged("an extended header without a member");
      has_end_ = true;
      position_ += std::ssize(block);
      continue;
    }
    if (std::ssize(block) < kTarBlockBytes) {
      return DataTruncated(
          field_, absl::StrCat(file_->path(), ": ends at byte ", file_->bytes(), ", after ",
                               number_, " members, without the mark of an archive's end"));
    }
    has_end_ = false;
    if (!HasRightChecksum(block)) {
      return Damaged(header_ == 0 ? "the checksum of the header is wrong; is it a tar file?"
                                  : "the checksum of the header is wrong");
    }
    const std::optional<int64_t> size = TarNumber(kTarSize.of(block));
    if (!size) return Damaged("the size is no number, or too large");
    const char kind = block[kTarKindOffset];
    position_ += kTarBlockBytes;
    const bool is_extension = kind == 'x' || kind == 'g' || kind == 'L' || kind == 'K';
    int64_t bytes = *size;
    if (!is_extension && extension_.size) bytes = *extension_.size;
    if (!KindHasBytes(kind)) bytes = 0;
    RETURN_IF_ERROR(CheckInside(bytes));
    const int64_t start = position_;
    if (is_extension) RETURN_IF_ERROR(ReadExtension(kind, bytes));
    // The last member may lack its padding if the mark of the end is missing, too.
    position_ += (bytes + kTarBlockBytes - 1) / kTarBlockBytes * kTarBlockBytes;
    if (is_extension) continue;

    if (kind == 'S' || extension_.is_sparse) {
      return DataInvalid(field_, absl::StrCat(file_->path(), ": member ", number_, " at byte ",
                                              header_, " is sparse: pack without --sparse"));
    }
    if (kind == 'M') {
      return DataInvalid(field_, absl::StrCat(file_->path(), ": member ", number_, " at byte ",
                                              header_, " continues another archive"));
    }
    const int64_t number = number_++;
    const absl::string_view name = NameOf(block);
    if (is_extended_) {
      extension_ = {};
      is_extended_ = false;
    }
    // Formats before ustar mark a folder by its name alone.
    if (!IsRegularKind(kind) || absl::EndsWith(name, "/")) continue;
    return TarMember{.name = name, .number = number, .offset = start, .bytes = bytes};
  }
}

}  // namespace muster
