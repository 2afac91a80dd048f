#include "lib/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "lib/data/data_fault.h"

namespace muster {

absl::StatusOr<std::unique_ptr<const MappedFile>> MappedFile::Open(const std::string& path,
                                                                   absl::string_view field) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return DataNotFound(field, path, errno);
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat status;
  if (fstat(file, &status) != 0) return DataNotFound(field, path, errno);
  if (!S_ISREG(status.st_mode)) {
    return DataInvalid(field, absl::StrCat(path, ": not a regular file"));
  }
  if (status.st_size == 0) return DataTruncated(field, absl::StrCat(path, ": the file is empty"));
  const auto size = static_cast<size_t>(status.st_size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return DataNotFound(field, path, errno);
  return absl::WrapUnique(new MappedFile({static_cast<const std::byte*>(memory), size}));
}

MappedFile::~MappedFile() { munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace muster
