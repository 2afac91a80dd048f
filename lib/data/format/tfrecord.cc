#include "lib/data/format/tfrecord.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/data/data_fault.h"
#include "lib/data/file/record_index.h"
#include "lib/data/format/compression.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"

namespace muster {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr int64_t kWindowBytes = 256 << 10;
constexpr int64_t kSmallRecordBytes = 32 << 10;

template <typename Number>
Number NumberAt(const std::byte* bytes) {
  Number number;
  std::memcpy(&number, bytes, sizeof(number));
  return number;
}

// The format rotates the CRC and adds a constant, because the CRC of data that contain CRCs would
// be weak.
uint32_t MaskedCrc(absl::Span<const std::byte> bytes) {
  return std::rotr(Crc32c(bytes), 15) + 0xa282ead8U;
}

template <typename Number>
void AppendNumber(Number number, std::string& text) {
  text.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

absl::Span<const std::byte> BytesIn(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

bool HasSoundFooter(absl::Span<const std::byte> data_and_footer) {
  CHECK_GE(data_and_footer.size(), kTfrecordFooterBytes);
  const size_t bytes = data_and_footer.size() - kTfrecordFooterBytes;
  return NumberAt<uint32_t>(data_and_footer.data() + bytes) ==
         MaskedCrc(data_and_footer.first(bytes));
}

void AppendTfrecord(absl::string_view data, std::string& file) {
  std::string length;
  AppendNumber<uint64_t>(data.size(), length);
  file += length;
  AppendNumber(MaskedCrc(BytesIn(length)), file);
  file.append(data.data(), data.size());
  AppendNumber(MaskedCrc(BytesIn(data)), file);
}

TfrecordScanner::TfrecordScanner(const DataFile& file, absl::string_view field)
    : file_(file), field_(field) {}

absl::Status TfrecordScanner::Damaged(int64_t record, int64_t offset,
                                      absl::string_view message) const {
  return DataDamaged(field_, file_.path(), record, offset, message);
}

bool TfrecordScanner::IsInWindow(int64_t offset, int64_t bytes) const {
  return window_offset_ <= offset && offset + bytes <= window_offset_ + window_bytes_;
}

absl::StatusOr<const std::byte*> TfrecordScanner::Find(int64_t offset, int64_t bytes,
                                                       int64_t ahead) {
  if (!IsInWindow(offset, bytes)) {
    const int64_t wanted = std::min(std::max(bytes, ahead), file_.bytes() - offset);
    if (wanted > window_capacity_) {
      window_bytes_ = 0;
      window_.reset(new std::byte[wanted]);  // not make_unique(), which writes zeros first
      window_capacity_ = wanted;
    }
    window_bytes_ = 0;
    RETURN_IF_ERROR(file_.Read(offset, absl::MakeSpan(window_.get(), wanted)));
    window_offset_ = offset;
    window_bytes_ = wanted;
  }
  return window_.get() + (offset - window_offset_);
}

absl::StatusOr<bool> TfrecordScanner::Next() {
  if (next_ == file_.bytes()) return false;
  const int64_t record = record_ + 1, left = file_.bytes() - next_;
  if (left < kTfrecordHeaderBytes) {
    if (record == 0) RETURN_IF_ERROR(CheckUncompressed(file_, field_));
    return Damaged(record, next_, absl::StrCat("the file ends after ", left, " bytes of a header"));
  }
  const int64_t ahead = bytes_ < kSmallRecordBytes ? kWindowBytes : 0;
  ASSIGN_OR_RETURN(const std::byte* header, Find(next_, kTfrecordHeaderBytes, ahead));
  if (NumberAt<uint32_t>(header + 8) != MaskedCrc(absl::MakeConstSpan(header, 8))) {
    // Four bytes of a good header can look like the beginning of a compressed file.
    if (record == 0) RETURN_IF_ERROR(CheckUncompressed(file_, field_));
    return Damaged(record, next_,
                   absl::StrCat("the checksum of the length differs",
                                record == 0 ? "; check that this is a TFRecord file" : ""));
  }
  const auto bytes = NumberAt<uint64_t>(header);
  if (bytes > RecordIndex::kPlaceBytesMax) {
    return Damaged(record, next_,
                   absl::StrCat("the record has ", bytes, " bytes, at most ",
                                RecordIndex::kPlaceBytesMax, " are allowed"));
  }
  const int64_t framed = kTfrecordHeaderBytes + static_cast<int64_t>(bytes) + kTfrecordFooterBytes;
  if (framed > left) {
    return Damaged(record, next_,
                   absl::StrCat("the file ends within the record: it has ", framed,
                                " bytes with its checksums, ", left, " are left"));
  }
  record_ = record;
  offset_ = next_ + kTfrecordHeaderBytes;
  bytes_ = static_cast<int32_t>(bytes);
  next_ += framed;
  return true;
}

absl::StatusOr<absl::Span<const std::byte>> TfrecordScanner::Data(Check check) {
  CHECK_GE(record_, 0);
  const int64_t bytes = bytes_ + kTfrecordFooterBytes;
  ASSIGN_OR_RETURN(const std::byte* data, Find(offset_, bytes, kWindowBytes));
  if (check == Check::kChecksum && !HasSoundFooter(absl::MakeConstSpan(data, bytes))) {
    return Damaged(record_, offset_ - kTfrecordHeaderBytes, "the checksum differs");
  }
  return absl::MakeConstSpan(data, bytes_);
}

}  // namespace muster
