// A file's bytes, read by the kernel as they are touched.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace muster {

// Immutable, shared by threads. The file must not shrink while it is mapped: who reads what is gone
// is ended by SIGBUS (docs/job_spec.md says so). To read rows by pread instead takes twenty times
// as long where they are a few bytes, as ids are.
class MappedFile {
 public:
  // A regular file that is not empty. `field` begins the message of a failure (see data_fault.h).
  static absl::StatusOr<std::unique_ptr<const MappedFile>> Open(const std::string& path,
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
