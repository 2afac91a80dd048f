#include "cli/local/cluster_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

// Returns the text that the holder wrote into the file. The file is empty between flock() and the
// write in Take(); then the holder is unknown.
std::string Holder(int file) {
  char text[256] = {};
  const ssize_t bytes = pread(file, text, sizeof(text) - 1, 0);
  return bytes > 0 ? std::string(text, bytes) : "another process";
}

// A full disk may have room later, so a retry can help. Every other error needs another folder.
absl::Status CannotUse(const std::string& dir, int error) {
  const std::string message = absl::StrCat(
      "the folder ", dir, " of a local cluster cannot be made or written: ", strerror(error));
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(message);
  return absl::InvalidArgumentError(absl::StrCat(message, "; choose another one with --dir"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterLock>> ClusterLock::Take(const std::string& dir,
                                                               const std::string& purpose) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return CannotUse(dir, error.value());
  const std::string path = dir + "/lock";
  // O_CLOEXEC: members of the cluster outlive this process and must not inherit the lock.
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return CannotUse(dir, errno);
  if (flock(file, LOCK_EX | LOCK_NB) != 0) {
    const int failure = errno;
    const std::string holder = Holder(file);
    close(file);
    if (failure != EWOULDBLOCK) {
      return absl::UnavailableError(absl::StrCat(path, ": ", strerror(failure)));
    }
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            "the local cluster in ", dir, " is locked by ", holder,
            ", which starts and ends its processes; wait until it ends, stop it, or use another "
            "folder (--dir)")),
        "CLUSTER_BUSY");
  }
  const std::string self = absl::StrCat("'", purpose, "' (pid ", getpid(), ")");
  if (ftruncate(file, 0) != 0 || pwrite(file, self.data(), self.size(), 0) < 0) {
    const int failure = errno;
    close(file);
    return CannotUse(dir, failure);
  }
  return absl::WrapUnique(new ClusterLock(file));
}

ClusterLock::~ClusterLock() { close(file_); }

}  // namespace muster::cli
