// Converts data into forms that jobs read by position.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "lib/data/convert/output_file.h"

namespace muster {

struct ConvertOptions {
  Overwrite overwrite = Overwrite::kRefuse;
  int64_t shard_bytes = int64_t{256} << 20;  // of a tar shard, before it is closed
  // Called after each file, and a few times a second within large ones.
  std::function<void(int64_t bytes_written)> progress = [](int64_t) {};
};

struct Converted {
  // "decompressed", "stored arrays", "tar shards", "stacked arrays" or "converted"
  std::string kind;
  int64_t files = 0;           // read
  int64_t files_left_out = 0;  // of a folder, because they need no conversion
  int64_t files_written = 0;
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
};

// Converts `in` into `out`. The content of `in` decides how:
//
// - A gzip or zstd file is decompressed.
// - An .npz file is written without compression.
// - A folder with only .npy files becomes one .npy file. Each file is a sample, in the order of
//   their names.
// - A folder of folders with images, one per class, becomes a folder of tar shards for WebDataset.
//   Their members are N.jpg (or .png, .webp) and N.cls, in a random order that depends only on the
//   number of images. The file classes.txt has the name of each class. The content of a file tells
//   its format. If shards may be replaced, those of an earlier conversion are removed.
// - Another folder becomes a folder with each of its compressed files and .npz files, converted.
//
// A file appears in `out` when it is complete. Blocks. Returns
//
// - ALREADY_EXISTS if a file exists and may not be replaced,
// - INVALID_ARGUMENT if `out` lies in the folder `in`,
// - DATA_INVALID if there is nothing to convert, or if a folder of images holds another file or a
//   class without images,
// - errors of data.
absl::StatusOr<Converted> Convert(const std::string& in, const std::string& out,
                                  const ConvertOptions& options);

}  // namespace muster
