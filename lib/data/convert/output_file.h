// Writes a large file that appears only when it is complete.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

enum class Overwrite { kRefuse, kReplace };

// Returns ALREADY_EXISTS for a path that may not be replaced.
absl::Status ExistsAlready(absl::string_view path);

// Writes to "PATH.part", which becomes PATH at the end. Thread-compatible. Errors are UNAVAILABLE
// with the path and the cause.
class OutputFile {
 public:
  // Returns ALREADY_EXISTS if there is a file and it may not be replaced, or if there is a folder.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path,
                                                            Overwrite overwrite);
  // Removes the incomplete file if Commit() has not succeeded.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  int64_t bytes() const { return bytes_; }  // written

  absl::Status Write(absl::string_view text);
  // Waits until the bytes are on disk, then gives the file its name.
  absl::Status Commit();

 private:
  OutputFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  absl::Status Fault(int error_number) const;
  std::string unfinished() const { return path_ + ".part"; }

  const std::string path_;
  const int descriptor_;
  int64_t bytes_ = 0;
  bool committed_ = false;
};

}  // namespace muster
