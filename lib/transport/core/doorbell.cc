#include "lib/transport/core/doorbell.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace muster {
namespace {

constexpr absl::string_view kEventFd = "anon_inode:[eventfd]";

bool IsEventFd(int fd) {
  char link[64];
  const ssize_t size = readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), link, sizeof(link));
  return size > 0 && absl::string_view(link, static_cast<size_t>(size)) == kEventFd;
}

}  // namespace

absl::StatusOr<Doorbell> Doorbell::Create() {
  FileDescriptor file(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (file) return Doorbell(std::move(file));
  return absl::ResourceExhaustedError(absl::StrCat("doorbell: eventfd: ", std::strerror(errno)));
}

absl::StatusOr<Doorbell> Doorbell::Adopt(FileDescriptor file) {
  if (!file) return absl::InvalidArgumentError("doorbell: no file");
  if (!IsEventFd(file.get()))
    return absl::InvalidArgumentError("doorbell: the descriptor is no eventfd");
  if ((fcntl(file.get(), F_GETFL) & O_NONBLOCK) == 0) {
    return absl::InvalidArgumentError("doorbell: it blocks");
  }
  return Doorbell(std::move(file));
}

// A full counter accepts no more rings and makes no edge, so Ring() resets it. It takes 2^64 - 2
// rings to fill it, or one write by a hostile process.
void Doorbell::Ring() const {
  uint64_t count = 1;
  while (write(fd(), &count, sizeof(count)) < 0 && errno == EAGAIN) {
    if (read(fd(), &count, sizeof(count)) < 0) return;  // another thread or process has reset it
    count = 1;
  }
}

}  // namespace muster
