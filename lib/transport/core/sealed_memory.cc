#include "lib/transport/core/sealed_memory.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace muster {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

absl::Status Exhausted(const char* call, int64_t bytes) {
  return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                        "shared memory of ", bytes, " bytes: ", call, ": ", std::strerror(errno))),
                    "MEMORY_EXHAUSTED");
}

absl::Status NotSealed(const char* what, int64_t found, int64_t wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("a peer's shared memory has ", what, " ", found, " instead of ", wanted));
}

// Checks that `file` is a sealed memory file of this size, because no other is safe to read. A file
// on a real file system may be truncated, and a file of huge pages may run out of them: reading
// either can kill the reader. Only memory files support F_SEAL_SHRINK.
absl::Status CheckSealed(int file, uint64_t bytes) {
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return NotSealed("the seals", seals, kSizeSeals);
  }
  struct statfs system;
  if (fstatfs(file, &system) != 0 || system.f_type != TMPFS_MAGIC) {
    return NotSealed("a file system of type", system.f_type, TMPFS_MAGIC);
  }
  struct stat status;
  if (fstat(file, &status) != 0 || static_cast<uint64_t>(status.st_size) != bytes) {
    return NotSealed("a size of", status.st_size, static_cast<int64_t>(bytes));
  }
  return absl::OkStatus();
}

}  // namespace

SealedMemory::SealedMemory(absl::Span<std::byte> memory, FileDescriptor file)
    : memory_(memory), file_(std::move(file)) {}

SealedMemory::SealedMemory(SealedMemory&& other) noexcept
    : memory_(std::exchange(other.memory_, {})), file_(std::move(other.file_)) {}

SealedMemory& SealedMemory::operator=(SealedMemory&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(file_, other.file_);
  return *this;
}

SealedMemory::~SealedMemory() {
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
}

absl::StatusOr<SealedMemory> SealedMemory::Create(const char* name, int64_t bytes, Others others) {
  CHECK_GT(bytes, 0);
  FileDescriptor file(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return Exhausted("memfd_create", bytes);
  if (ftruncate(file.get(), bytes) != 0) return Exhausted("ftruncate", bytes);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return Exhausted("mmap", bytes);
  SealedMemory sealed({static_cast<std::byte*>(memory), static_cast<size_t>(bytes)},
                      std::move(file));
  madvise(memory, bytes, MADV_HUGEPAGE);  // a hint; most kernels are configured to ignore it
  // The seals come last because they also forbid new writable mappings by this process.
  const int last = F_SEAL_SEAL | kSizeSeals;
  if (others == Others::kRead && fcntl(sealed.file(), F_ADD_SEALS, last | F_SEAL_FUTURE_WRITE) == 0)
    return sealed;
  if (fcntl(sealed.file(), F_ADD_SEALS, last) != 0) return Exhausted("F_ADD_SEALS", bytes);
  return sealed;
}

absl::StatusOr<SealedMemory> SealedMemory::Map(const FileDescriptor& file, uint64_t bytes,
                                               Access access) {
  if (bytes == 0 || bytes > std::numeric_limits<int64_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("shared memory of ", bytes, " bytes"));
  }
  RETURN_IF_ERROR(CheckSealed(file.get(), bytes));
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* memory = mmap(nullptr, bytes, protection, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return Exhausted("mmap", static_cast<int64_t>(bytes));
  return SealedMemory({static_cast<std::byte*>(memory), bytes}, FileDescriptor());
}

}  // namespace muster
