// One open file; every failure is a Status that names the path and, where there is one, the offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace muster {

// "<path>: <action>: no space left on device; <what to try>", with the canonical code of
// `error_number`. Reason STORAGE_FULL when the device or a quota is full, else STORAGE_FAILED.
absl::Status StorageError(const std::string& path, absl::string_view action, int error_number);

// Movable. Reads and writes at offsets are thread-safe.
class DiskFile {
 public:
  // A regular file.
  static absl::StatusOr<DiskFile> OpenToRead(const std::string& path);
  // Fails when the file exists.
  static absl::StatusOr<DiskFile> CreateToWrite(const std::string& path);
  // The same, for a file that other machines write to as well: a client of a network file system
  // that may read, too, would fill its pages up with what it read and send whole pages back, over
  // what others wrote beside. Sha256() and ReadAt() fail.
  static absl::StatusOr<DiskFile> CreateToWriteOnly(const std::string& path);
  // Opens a file of `length` bytes that is there, to write only. `path` lies below the folder
  // `root`, whatever it says: neither ".." nor a symbolic link leads out of it, nor a second name
  // of the file (a hard link).
  static absl::StatusOr<DiskFile> OpenBeneath(const std::string& root, const std::string& path,
                                              int64_t length);

  DiskFile(DiskFile&& other) noexcept;
  DiskFile& operator=(DiskFile&& other) noexcept;
  ~DiskFile();

  const std::string& path() const { return path_; }
  absl::StatusOr<int64_t> Size() const;

  // Makes the file `bytes` long and, where the file system can, takes the space for it, so that no
  // write fails later.
  absl::Status Reserve(int64_t bytes);

  // All of `data`. DATA_LOSS (reason "STORAGE_FAILED") when the file ends inside the range read, or
  // the device cannot read it.
  absl::Status WriteAt(int64_t offset, absl::Span<const std::byte> data);
  absl::Status ReadAt(int64_t offset, absl::Span<std::byte> data) const;

  // Returns once the content is on the device.
  absl::Status Sync();

  // SHA-256 of the whole content, lower-case hex. Asks `stop`, unless it is null, every few
  // megabytes: CANCELLED once it says so.
  absl::StatusOr<std::string> Sha256(const std::function<bool()>& stop = nullptr) const;

 private:
  DiskFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  static absl::StatusOr<DiskFile> Open(const std::string& path, int flags,
                                       absl::string_view action);

  std::string path_;
  int descriptor_;  // -1: moved from
};

// SHA-256 of `text`, lower-case hex.
std::string Sha256Of(absl::string_view text);

}  // namespace muster
