// An open file. Every failure is a Status that names the path and, if there is one, the offset.
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

// Returns "<path>: <action>: no space left on device; <what to try>" with the canonical code of
// `error_number`. The reason is STORAGE_FULL if the device or a quota is full or the file too
// large, else STORAGE_FAILED.
absl::Status StorageError(const std::string& path, absl::string_view action, int error_number);

// Movable. Reads and writes at offsets are thread-safe.
class DiskFile {
 public:
  // Opens a regular file.
  static absl::StatusOr<DiskFile> OpenToRead(const std::string& path);
  // Creates a file. Fails if the file exists.
  static absl::StatusOr<DiskFile> CreateToWrite(const std::string& path);
  // Creates a file that other machines write to as well, for writing only. A client of a network
  // file system that may also read would fill its pages with read data. It would then send back
  // whole pages, over the bytes that others wrote next to its own. Sha256() and ReadAt() fail.
  static absl::StatusOr<DiskFile> CreateToWriteOnly(const std::string& path);
  // Opens an existing file of `length` bytes for writing only. The file is below the folder `root`
  // whatever `path` says: "..", symbolic links and hard links are refused.
  static absl::StatusOr<DiskFile> OpenBeneath(const std::string& root, const std::string& path,
                                              int64_t length);

  DiskFile(DiskFile&& other) noexcept;
  DiskFile& operator=(DiskFile&& other) noexcept;
  ~DiskFile();

  const std::string& path() const { return path_; }
  absl::StatusOr<int64_t> Size() const;

  // Makes the file `bytes` long. Also allocates the space if the file system can, so that no later
  // write fails.
  absl::Status Reserve(int64_t bytes);

  // Write or read all of `data`. Return DATA_LOSS (reason "STORAGE_FAILED") if the file ends inside
  // the range, or if the device cannot read it.
  absl::Status WriteAt(int64_t offset, absl::Span<const std::byte> data);
  absl::Status ReadAt(int64_t offset, absl::Span<std::byte> data) const;

  // Blocks until the content is on the device.
  absl::Status Sync();

  // Returns the SHA-256 of the whole content in lower-case hex. Calls `stop`, unless it is null,
  // before every megabyte, and returns CANCELLED once it returns true.
  absl::StatusOr<std::string> Sha256(const std::function<bool()>& stop = nullptr) const;

 private:
  DiskFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  static absl::StatusOr<DiskFile> Open(const std::string& path, int flags,
                                       absl::string_view action);

  std::string path_;
  int descriptor_;  // -1: moved from
};

// Returns the SHA-256 of `text` in lower-case hex.
std::string Sha256Of(absl::string_view text);

}  // namespace muster
