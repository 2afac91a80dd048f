// For tests of what happens to a process at its limit of file descriptors.
#pragma once

#include <glog/logging.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lib/transport/file_descriptor.h"

namespace muster {

// This process can open nothing more, as long as it lives.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const FileDescriptor lowest(dup(STDERR_FILENO));
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(lowest.get());
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptorsLeft() { CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_;
};

}  // namespace muster
