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

// Places the tensors in the given order. Fills in offsets and file_bytes of `header`, and returns
// the bytes of the header: a length prefix, and JSON padded to 8 bytes with spaces. The file
// consists of these bytes and then of every tensor's bytes.
std::string EncodeSafetensorsHeader(SafetensorsHeader& header);

// Reads and checks the header of the file at `path`:
//
// - the length is at most 100,000,000, and the text is JSON without duplicate keys
// - offsets are contiguous and within the file
// - sizes equal shape x dtype
// - the file has the exact length
//
// Returns NOT_FOUND, or DATA_LOSS with file and offset.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const std::string& path);

// Reads `bytes` at `offset` (from the start of the file) into `out`.
absl::Status ReadFileRange(const std::string& path, int64_t offset, int64_t bytes, void* out);

}  // namespace muster
