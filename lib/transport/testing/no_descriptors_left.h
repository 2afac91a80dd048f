// Puts a process at its limit of file descriptors, for tests.
#pragma once

#include <glog/logging.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

#include "lib/transport/core/file_descriptor.h"

namespace muster {

// This process can open no file descriptor, or only `but` of them, while the object lives.
class NoDescriptorsLeft {
 public:
  explicit NoDescriptorsLeft(size_t but = 0) {
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    std::vector<FileDescriptor> lowest;
    while (lowest.size() <= but) lowest.emplace_back(dup(STDERR_FILENO));
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(lowest.back().get());
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptorsLeft() { CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_;
};

}  // namespace muster
