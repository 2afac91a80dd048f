// The safetensors container: u64 little-endian header length, JSON header, tensor bytes.
//   Source: github.com/huggingface/safetensors, README "Format".
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

struct TensorEntry {
  std::string name;
  std::string dtype = "F32";
  std::vector<int64_t> shape;
  int64_t offset = 0;  // of its first byte, from the start of the file
  int64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in offset order, contiguous, no holes
  absl::btree_map<std::string, std::string> metadata;
  int64_t file_bytes = 0;  // whole file

  const TensorEntry* Find(absl::string_view name) const;
};

// Places the tensors in the given order and returns the bytes of the header (length prefix and JSON
// padded to 8 with spaces) with `header` filled: offsets and file_bytes. The file is those bytes,
// then every tensor's.
std::string EncodeSafetensorsHeader(SafetensorsHeader& header);

// Reads and checks the header of the file at `path`: length <= 100,000,000, JSON, offsets
// contiguous and within the file, sizes equal to shape x dtype, no duplicate keys, file length
// exact. NOT_FOUND, or DATA_LOSS naming file and offset.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const std::string& path);

// Reads `bytes` at `offset` (from the start of the file) into `out`.
absl::Status ReadFileRange(const std::string& path, int64_t offset, int64_t bytes, void* out);

}  // namespace muster
