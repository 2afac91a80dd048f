// Maps a file's bytes into memory; the kernel reads them on access.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace muster {

// Immutable; threads may share it. The file must not shrink while it is mapped: an access beyond
// its new end kills the process by SIGBUS (docs/job_spec.md says so). Reading rows by pread instead
// takes twenty times as long for rows of a few bytes, such as ids.
class MappedFile {
 public:
  // Maps a regular file that is not empty. `field` begins the message of an error (see
  // data_fault.h).
  static absl::StatusOr<std::unique_ptr<const MappedFile>> Open(const std::string& path,
                                                                absl::string_view field);
  // As Open(), for the open file `descriptor`, which it closes.
  static absl::StatusOr<std::unique_ptr<const MappedFile>> Map(int descriptor,
                                                               absl::string_view path,
                                                               absl::string_view field);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  absl::Span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(absl::Span<const std::byte> bytes) : bytes_(bytes) {}

  const absl::Span<const std::byte> bytes_;
};

}  // namespace muster
