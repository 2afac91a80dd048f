// How one process wakes another that sleeps in poll() or epoll_wait().
#pragma once

#include <utility>

#include "absl/status/statusor.h"
#include "lib/transport/core/file_descriptor.h"

namespace muster {

// An eventfd. Its owner watches fd() for edges (EPOLLIN | EPOLLET) and never reads it: every Ring()
// is an edge. Others get the descriptor over a Unix socket and ring. A ring costs half of what a
// packet does, and nobody has to take it out again.
class Doorbell {
 public:
  // RESOURCE_EXHAUSTED: no file descriptors are left.
  static absl::StatusOr<Doorbell> Create();
  // One that another process handed over. INVALID_ARGUMENT: it is no eventfd, or one that blocks.
  static absl::StatusOr<Doorbell> Adopt(FileDescriptor file);

  // Any thread. Does not block, unless a process that has the bell too makes it blocking and full.
  void Ring() const;
  int fd() const { return file_.get(); }

 private:
  explicit Doorbell(FileDescriptor file) : file_(std::move(file)) {}

  FileDescriptor file_;
};

}  // namespace muster
