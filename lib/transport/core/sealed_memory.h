// Memory that processes hand to each other and nobody can take away from under a reader.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/transport/core/file_descriptor.h"

namespace muster {

// A mapped memory file (memfd_create) whose size is sealed: an access within it cannot fault,
// whatever the other processes do. Move-only; unmaps itself. The pages live as long as any mapping.
class SealedMemory {
 public:
  // What the processes that get the file may do. Where the kernel is older than 5.1, kRead is a
  // request.
  enum class Others { kRead, kWrite };

  SealedMemory() = default;  // empty
  SealedMemory(SealedMemory&& other) noexcept;
  SealedMemory& operator=(SealedMemory&& other) noexcept;
  ~SealedMemory();

  // Zeroed pages that take no memory until they are written. `name` is what /proc shows. bytes > 0.
  // RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED".
  static absl::StatusOr<SealedMemory> Create(const char* name, int64_t bytes, Others others);

  // Maps another process's memory. INVALID_ARGUMENT unless `file` is a memory file of `bytes` bytes
  // that can never shrink. The result has no file().
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
