// Wakes another process that sleeps in poll() or epoll_wait().
#pragma once

#include <utility>

#include "absl/status/statusor.h"
#include "lib/transport/core/file_descriptor.h"

namespace muster {

// An eventfd. Its owner watches fd() for edges (EPOLLIN | EPOLLET) and never reads it: every Ring()
// is an edge. Other processes receive the descriptor over a Unix socket and ring. A ring costs half
// as much as a packet, and its receiver does not have to read anything.
class Doorbell {
 public:
  // Returns RESOURCE_EXHAUSTED if there is no file descriptor or memory left.
  static absl::StatusOr<Doorbell> Create();
  // Takes a descriptor from another process. Returns INVALID_ARGUMENT if it is no eventfd, or if it
  // blocks.
  static absl::StatusOr<Doorbell> Adopt(FileDescriptor file);

  // Wakes the owner. Thread-safe. Does not block, unless another process that has the bell makes it
  // blocking and fills its counter.
  void Ring() const;
  int fd() const { return file_.get(); }

 private:
  explicit Doorbell(FileDescriptor file) : file_(std::move(file)) {}

  FileDescriptor file_;
};

}  // namespace muster
