#include "lib/data/file/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "lib/data/data_fault.h"
#include "lib/status/status.h"

namespace muster {

absl::StatusOr<std::unique_ptr<const MappedFile>> MappedFile::Open(const std::string& path,
                                                                   absl::string_view field) {
  ASSIGN_OR_RETURN(const int file, OpenDataFile(path, field));
  return Map(file, path, field);
}

absl::StatusOr<std::unique_ptr<const MappedFile>> MappedFile::Map(int descriptor,
                                                                  absl::string_view path,
                                                                  absl::string_view field) {
  const absl::Cleanup close_file = [descriptor] { close(descriptor); };
  struct stat status;
  if (fstat(descriptor, &status) != 0) return DataPathFault(field, path, errno);
  if (status.st_size == 0) return DataTruncated(field, absl::StrCat(path, ": the file is empty"));
  const auto size = static_cast<size_t>(status.st_size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return DataPathFault(field, path, errno);
  return absl::WrapUnique(new MappedFile({static_cast<const std::byte*>(memory), size}));
}

MappedFile::~MappedFile() { munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace muster
