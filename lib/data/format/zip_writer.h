// Writes zip archives of members without compression, as numpy.savez does.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace muster {

// Makes the headers. The caller writes Next(), the content, and so on, and End().
// Thread-compatible.
class ZipWriter {
 public:
  // Returns what precedes the content of the next member. Requires: the name is at most 65,535
  // bytes; `crc` is the CRC-32 of the content.
  std::string Next(absl::string_view name, uint32_t crc, uint64_t bytes);
  // Returns the directory, with which the archive ends.
  std::string End() const;

 private:
  std::string directory_;
  uint64_t members_ = 0;
  uint64_t offset_ = 0;  // of the next header
};

}  // namespace muster
