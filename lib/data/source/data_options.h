// How a process opens the data of its jobs.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace muster {

struct DataOptions {
  // Bytes of memory that the data may take for as long as they are open.
  int64_t held_bytes_max = std::numeric_limits<int64_t>::max();
  // Where the index of large data is kept, so that the next process need not build it. "": nowhere.
  std::string index_folder = {};
};

}  // namespace muster
