// Reads and writes backups of a store as files. proto/muster/v1/store.proto describes the format.
#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/security/sha256.h"
#include "proto/muster/v1/store.pb.h"

namespace muster {

// Writes a backup record by record. Not thread-safe.
class StoreBackupWriter {
 public:
  // `sink` receives the next bytes of the file. Its first error ends the backup.
  explicit StoreBackupWriter(std::function<absl::Status(absl::string_view)> sink);

  absl::Status Add(const v1::BackupRecord& record);
  // Completes the file. Call once, after the last record.
  absl::Status Finish();

 private:
  absl::Status Emit(absl::string_view bytes);

  const std::function<absl::Status(absl::string_view)> sink_;
  Sha256 hash_;
  uint64_t records_ = 0;
  bool begun_ = false;
};

// Reads a complete backup. Not thread-safe.
class StoreBackupReader {
 public:
  // Reads and checks the whole file. Returns
  // - NOT_FOUND if it cannot be read,
  // - DATA_LOSS (reason "BACKUP_CORRUPT") if it is damaged, cut off or not a backup,
  // - FAILED_PRECONDITION ("BACKUP_TOO_NEW") if a newer Muster wrote it.
  static absl::StatusOr<std::unique_ptr<StoreBackupReader>> Open(const std::string& path);

  const v1::BackupHeader& header() const { return header_; }
  // Returns the records in order, the header first, and nullopt after the last one.
  absl::StatusOr<std::optional<v1::BackupRecord>> Next();

 private:
  explicit StoreBackupReader(std::string path) : path_(std::move(path)) {}

  absl::Status Rewind();
  absl::Status Damaged(absl::string_view what) const;
  absl::Status CheckAll();

  const std::string path_;
  std::ifstream file_;
  int64_t size_ = 0;
  Sha256 hash_;  // over the bytes read since Rewind()
  uint64_t records_ = 0;
  v1::BackupHeader header_;
};

}  // namespace muster
