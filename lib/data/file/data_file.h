// A file of samples that is read by position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace muster {

// Calls `on_read` before each read of a DataFile, and in each CheckWatch(), on this thread, as long
// as the watch exists. They return the error of `on_read`, if it has one. So opening large data
// shows progress and can be stopped. Requires: it is destroyed on the thread that made it, before
// any older watch.
class ReadWatch {
 public:
  explicit ReadWatch(std::function<absl::Status()> on_read);
  ~ReadWatch();
  ReadWatch(const ReadWatch&) = delete;
  ReadWatch& operator=(const ReadWatch&) = delete;

 private:
  friend absl::Status CheckWatch();
  const std::function<absl::Status()> on_read_;
  const ReadWatch* const outer_;
};

// Calls the newest ReadWatch of this thread, if there is one. For work that takes long without
// reads, such as listing folders.
absl::Status CheckWatch();

// Immutable; threads may share it. Unlike a mapped file, a file that shrinks gives an error and
// does not kill the process.
class DataFile {
 public:
  // Opens a regular file. `field` begins the message of an error (see data_fault.h).
  static absl::StatusOr<std::shared_ptr<const DataFile>> Open(const std::string& path,
                                                              absl::string_view field);
  ~DataFile();
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }              // when it was opened
  int64_t modified_ns() const { return modified_ns_; }  // since 1970, on the clock of its storage

  // Fills `to` with the bytes at `offset`. Blocks. Tries an I/O error three times. Returns
  // DATA_TRUNCATED if the file ends before, and UNAVAILABLE with the reason DATA_UNREADABLE if the
  // storage fails. Both name path and offset.
  absl::Status Read(int64_t offset, absl::Span<std::byte> to) const;

  // As Read(), up to the end of the file. Returns the number of bytes.
  absl::StatusOr<int64_t> ReadSome(int64_t offset, absl::Span<std::byte> to) const;

  // Returns the first `bytes_max` bytes, or all of a shorter file. Fails as Read() does.
  absl::StatusOr<std::string> ReadFirst(int64_t bytes_max) const;

  // Asks the kernel to read these bytes soon. Does not block.
  void WillNeed(int64_t offset, int64_t bytes) const;

 private:
  DataFile(std::string path, std::string field, int descriptor, int64_t bytes, int64_t modified_ns)
      : path_(std::move(path)),
        field_(std::move(field)),
        descriptor_(descriptor),
        bytes_(bytes),
        modified_ns_(modified_ns) {}

  const std::string path_;
  const std::string field_;
  const int descriptor_;
  const int64_t bytes_;
  const int64_t modified_ns_;
};

}  // namespace muster
