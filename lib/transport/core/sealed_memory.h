// Memory that processes share and that no process can shrink while another reads it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/transport/core/file_descriptor.h"

namespace muster {

// A mapped memory file (memfd_create) with a sealed size: an access within it cannot fault,
// whatever other processes do. Move-only; unmaps itself. The pages live until the last mapping and
// the last descriptor of the file are gone.
class SealedMemory {
 public:
  // The access that other processes get with the file. Kernels older than 5.1 do not enforce kRead.
  enum class Others { kRead, kWrite };

  SealedMemory() = default;  // empty
  SealedMemory(SealedMemory&& other) noexcept;
  SealedMemory& operator=(SealedMemory&& other) noexcept;
  ~SealedMemory();

  // Allocates zeroed pages that take no memory until they are written. /proc shows `name`. Returns
  // RESOURCE_EXHAUSTED with reason "MEMORY_EXHAUSTED" if there is no memory. Requires: bytes > 0.
  static absl::StatusOr<SealedMemory> Create(const char* name, int64_t bytes, Others others);

  // Maps another process's memory. The result has no file(). Returns INVALID_ARGUMENT unless `file`
  // is a memory file of exactly `bytes` bytes that can never shrink or grow. Returns
  // RESOURCE_EXHAUSTED if the kernel refuses the mapping.
  enum class Access { kRead, kReadWrite };
  static absl::StatusOr<SealedMemory> Map(const FileDescriptor& file, uint64_t bytes,
                                          Access access);

  absl::Span<std::byte> memory() const { return memory_; }
  int file() const { return file_.get(); }

 private:
  SealedMemory(absl::Span<std::byte> memory, FileDescriptor file);

  absl::Span<std::byte> memory_;
  FileDescriptor file_;
};

}  // namespace muster
