#include "lib/checkpoint/folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "lib/checkpoint/disk_file.h"
#include "lib/status/status.h"

namespace muster {

namespace fs = std::filesystem;

std::string ParentOf(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().native();
  return parent.empty() ? "." : parent;
}

absl::Status MakeFolders(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return absl::OkStatus();
  const std::string parent = ParentOf(path);
  if (parent != path) RETURN_IF_ERROR(MakeFolders(parent));
  // If `path` has a trailing slash, the call above has just created it.
  if (fs::is_directory(path, error)) return absl::OkStatus();
  absl::Status made = MakeFolder(path);
  if (absl::IsAlreadyExists(made) && fs::is_directory(path, error)) return absl::OkStatus();
  RETURN_IF_ERROR(made);
  return SyncFolder(parent);
}

absl::Status MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0755) != 0) return StorageError(path, "make folder", errno);
  return absl::OkStatus();
}

absl::Status SyncFolder(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return StorageError(path, "open folder", errno);
  absl::Cleanup close_descriptor = [&] { close(descriptor); };
  if (fsync(descriptor) != 0) return StorageError(path, "sync folder", errno);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().native());
  }
  if (error == std::errc::no_such_file_or_directory) return std::vector<std::string>();
  if (error) return StorageError(path, "list", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status RenameFolder(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) {
    return StorageError(from, absl::StrCat("rename to ", to), errno);
  }
  return absl::OkStatus();
}

absl::Status ExchangeFolders(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) {
      return absl::UnimplementedError(
          absl::StrCat(to, ": the file system cannot exchange folders"));
    }
    return StorageError(from, absl::StrCat("exchange with ", to), errno);
  }
  return absl::OkStatus();
}

absl::Status RemoveFolder(const std::string& path) {
  absl::Status first;
  std::error_code error;
  // A file has no entries, and is removed like an empty folder.
  const auto names = ListFolder(path);
  for (const std::string& name : names.value_or(std::vector<std::string>())) {
    const std::string entry = absl::StrCat(path, "/", name);
    fs::remove_all(entry, error);
    if (error) first.Update(StorageError(entry, "remove", error.value()));
  }
  if (!first.ok()) return first;
  fs::remove(path, error);
  if (error) return StorageError(path, "remove", error.value());
  return absl::OkStatus();
}

}  // namespace muster
