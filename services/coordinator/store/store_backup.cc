#include "services/coordinator/store/store_backup.h"

#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr absl::string_view kMagic = "muster-backup 1\n";
constexpr absl::string_view kMagicOfAll = "muster-backup ";
constexpr uint32_t kRecordBytesMax = 1u << 30;  // half of what protobuf can parse

std::string Length(uint32_t bytes) {
  return {static_cast<char>(bytes), static_cast<char>(bytes >> 8), static_cast<char>(bytes >> 16),
          static_cast<char>(bytes >> 24)};
}

uint32_t LengthIn(const std::array<char, 4>& bytes) {
  uint32_t length = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    length |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return length;
}

}  // namespace

StoreBackupWriter::StoreBackupWriter(std::function<absl::Status(absl::string_view)> sink)
    : sink_(std::move(sink)) {}

absl::Status StoreBackupWriter::Emit(absl::string_view bytes) {
  hash_.Add(bytes);
  return sink_(bytes);
}

absl::Status StoreBackupWriter::Add(const v1::BackupRecord& record) {
  if (!std::exchange(begun_, true)) RETURN_IF_ERROR(Emit(kMagic));
  const std::string bytes = record.SerializeAsString();
  if (bytes.size() > kRecordBytesMax) {
    return WithReason(
        absl::ResourceExhaustedError(
            absl::StrCat("backup: job ", record.job().number(), " takes ", bytes.size(), " bytes")),
        "STORE_FAILED");
  }
  ++records_;
  RETURN_IF_ERROR(Emit(Length(static_cast<uint32_t>(bytes.size()))));
  return Emit(bytes);
}

absl::Status StoreBackupWriter::Finish() {
  v1::BackupRecord end;
  end.mutable_end()->set_records(records_);
  end.mutable_end()->set_sha256(hash_.Finish());
  const std::string bytes = end.SerializeAsString();
  return sink_(absl::StrCat(Length(static_cast<uint32_t>(bytes.size())), bytes));
}

absl::StatusOr<std::unique_ptr<StoreBackupReader>> StoreBackupReader::Open(
    const std::string& path) {
  std::unique_ptr<StoreBackupReader> reader(new StoreBackupReader(path));
  RETURN_IF_ERROR(reader->Rewind());
  RETURN_IF_ERROR(reader->CheckAll());
  RETURN_IF_ERROR(reader->Rewind());
  return reader;
}

absl::Status StoreBackupReader::Damaged(absl::string_view what) const {
  return WithReason(absl::DataLossError(absl::StrCat(path_, ": ", what, ": use another backup")),
                    "BACKUP_CORRUPT");
}

absl::Status StoreBackupReader::Rewind() {
  file_ = std::ifstream(path_, std::ios::binary);
  if (!file_) return absl::NotFoundError(absl::StrCat(path_, " cannot be read"));
  file_.seekg(0, std::ios::end);
  size_ = file_.tellg();
  file_.seekg(0);
  std::string magic(kMagic.size(), '\0');
  file_.read(magic.data(), magic.size());
  if (magic != kMagic) {
    if (!file_ || !absl::StartsWith(magic, kMagicOfAll)) return Damaged("is not a Muster backup");
    return WithReason(absl::FailedPreconditionError(
                          absl::StrCat(path_, ": was written by a newer Muster: use that version")),
                      "BACKUP_TOO_NEW");
  }
  hash_ = Sha256();
  hash_.Add(magic);
  records_ = 0;
  return absl::OkStatus();
}

absl::Status StoreBackupReader::CheckAll() {
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<v1::BackupRecord> record, Next());
    if (!record) return absl::OkStatus();
    if (records_ == 1 && !record->has_header()) return Damaged("does not begin with its header");
    if (record->has_header()) header_ = record->header();
  }
}

absl::StatusOr<std::optional<v1::BackupRecord>> StoreBackupReader::Next() {
  std::array<char, 4> length_bytes;
  if (!file_.read(length_bytes.data(), length_bytes.size())) return Damaged("is cut off");
  const uint32_t length = LengthIn(length_bytes);
  if (length > size_ - file_.tellg()) return Damaged("is cut off");
  std::string bytes(length, '\0');
  if (!file_.read(bytes.data(), length)) return Damaged("is cut off");
  v1::BackupRecord record;
  if (!record.ParseFromString(bytes)) return Damaged("is damaged");
  if (record.has_end()) {
    if (record.end().records() != records_ || record.end().sha256() != hash_.Finish()) {
      return Damaged("its SHA-256 does not match");
    }
    return std::nullopt;
  }
  ++records_;
  hash_.Add(absl::string_view(length_bytes.data(), length_bytes.size()));
  hash_.Add(bytes);
  return record;
}

}  // namespace muster
