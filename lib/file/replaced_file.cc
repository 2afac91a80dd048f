#include "lib/file/replaced_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

// Returns 0, or the errno of the first failure.
int Write(int file, absl::string_view content) {
  while (!content.empty()) {
    const ssize_t count = write(file, content.data(), content.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    content.remove_prefix(count);
  }
  return fsync(file) == 0 ? 0 : errno;
}

}  // namespace

absl::Status ReplaceFile(const std::string& path, absl::string_view content, mode_t mode) {
  const std::string unfinished = absl::StrCat(path, ".", getpid(), ".tmp");
  const int file = open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  int fault = file < 0 ? errno : Write(file, content);
  if (file >= 0 && close(file) != 0 && fault == 0) fault = errno;
  if (fault == 0 && rename(unfinished.c_str(), path.c_str()) != 0) fault = errno;
  if (fault == 0) return absl::OkStatus();
  unlink(unfinished.c_str());
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written: ", std::strerror(fault)));
}

}  // namespace muster
