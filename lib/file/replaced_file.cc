#include "lib/file/replaced_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

// Writes and syncs the file. Returns the operation that failed and sets errno, or returns null.
const char* Fill(int file, absl::string_view content) {
  while (!content.empty()) {
    const ssize_t count = write(file, content.data(), content.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return "write";
    content.remove_prefix(count);
  }
  return fsync(file) == 0 ? nullptr : "sync";
}

// Like Fill(), for a file that it creates or empties.
const char* Create(const std::string& path, absl::string_view content, mode_t mode) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  if (file < 0) return "open";
  const char* failed = Fill(file, content);
  const int fault = errno;  // close() may set another
  if (close(file) != 0 && failed == nullptr) return "close";
  errno = fault;
  return failed;
}

}  // namespace

absl::Status ReplaceFile(const std::string& path, absl::string_view content, mode_t mode) {
  const std::string unfinished = absl::StrCat(path, ".", getpid(), ".tmp");
  const char* failed = Create(unfinished, content, mode);
  if (failed == nullptr && rename(unfinished.c_str(), path.c_str()) != 0) failed = "rename";
  if (failed == nullptr) return absl::OkStatus();
  const int fault = errno;
  unlink(unfinished.c_str());
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written: ", failed, " ", unfinished,
                                             ": ", std::strerror(fault)));
}

}  // namespace muster
