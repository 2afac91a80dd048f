// Backups of a store as files. The format is in proto/muster/v1/store.proto.
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

// Makes a backup, piece by piece. Not thread-safe.
class BackupWriter {
 public:
  // `sink` takes the next bytes of the file; its first error ends the backup.
  explicit BackupWriter(std::function<absl::Status(absl::string_view)> sink);

  absl::Status Add(const v1::BackupRecord& record);
  // After the last record: the file is whole.
  absl::Status Finish();

 private:
  absl::Status Emit(absl::string_view bytes);

  const std::function<absl::Status(absl::string_view)> sink_;
  Sha256 hash_;
  uint64_t records_ = 0;
  bool begun_ = false;
};

// Reads one that is whole. Not thread-safe.
class BackupReader {
 public:
  // Looks at all of it first. NOT_FOUND; DATA_LOSS (reason "BACKUP_CORRUPT"): not a backup, cut off
  // or damaged; FAILED_PRECONDITION ("BACKUP_TOO_NEW"): of a newer Muster.
  static absl::StatusOr<std::unique_ptr<BackupReader>> Open(const std::string& path);

  const v1::BackupHeader& header() const { return header_; }
  // One after the other, the header first; nullopt behind the last one.
  absl::StatusOr<std::optional<v1::BackupRecord>> Next();

 private:
  explicit BackupReader(std::string path) : path_(std::move(path)) {}

  absl::Status Rewind();
  absl::Status Damaged(absl::string_view what) const;
  absl::Status CheckAll();

  const std::string path_;
  std::ifstream file_;
  int64_t size_ = 0;
  Sha256 hash_;  // of what was read since Rewind()
  uint64_t records_ = 0;
  v1::BackupHeader header_;
};

}  // namespace muster
