// How a process opens the data of its jobs.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "lib/data/image_rows.h"

namespace muster {

struct DataOptions {
  // Bytes of memory that the data may take for as long as they are open.
  int64_t held_bytes_max = std::numeric_limits<int64_t>::max();
  // Bytes of memory for the blocks of a block shuffle. 0: records are read one by one.
  int64_t block_bytes_max = 0;
  // The folder that keeps the index of large data for the next process. "": none is kept.
  std::string index_folder = {};
  // Makes rows from images: ImageMaker::Create. Empty in a process without image libraries, where
  // sources with images give FAILED_PRECONDITION.
  MakeImageRows make_images = {};
};

}  // namespace muster
