// Reads NumPy's .npy files, each of which holds one array.
//   Source: NumPy, "numpy.lib.format", versions 1.0 to 3.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/data/file/mapped_file.h"

namespace muster {

enum class NpyType { kF32, kF64, kI32, kI64, kU8 };
absl::string_view NpyTypeName(NpyType type);  // "f32", ...
int64_t NpyTypeBytes(NpyType type);
bool IsInteger(NpyType type);

// The type, shape and position of the array in a file's bytes.
struct NpyHeader {
  NpyType type = NpyType::kF32;
  std::vector<int64_t> shape;
  size_t data_offset = 0;
  size_t data_bytes = 0;
};

// Reads the header of a complete file of `bytes`. The array must be little-endian, in C order,
// complete, and the last thing in the file. Returns DATA_TRUNCATED or DATA_INVALID; the message
// begins with `field` and `path`.
absl::StatusOr<NpyHeader> ReadNpyHeader(absl::Span<const std::byte> bytes, const std::string& path,
                                        absl::string_view field);

// Reads the header from the first bytes of a file that has `file_bytes`. Requires: `first` is the
// whole file, or at least kNpyFirstBytes.
inline constexpr size_t kNpyFirstBytes = (1 << 16) + 12;
absl::StatusOr<NpyHeader> ReadNpyHeader(absl::Span<const std::byte> first, size_t file_bytes,
                                        const std::string& path, absl::string_view field);

// Returns the header of a file with such an array. The elements follow it.
std::string MakeNpyHeader(NpyType type, absl::Span<const int64_t> shape);

// Converts `count` elements as static_cast does. Both may be unaligned. Requires: a type for
// NpyToI32() is an integer.
void NpyToF32(NpyType type, const std::byte* from, std::byte* to, int64_t count);
void NpyToI32(NpyType type, const std::byte* from, std::byte* to, int64_t count);

// Immutable; threads may share it.
class NpyFile {
 public:
  static absl::StatusOr<NpyFile> Open(const std::string& path, absl::string_view field);

  const NpyHeader& header() const { return header_; }
  absl::Span<const std::byte> data() const {
    return file_->bytes().subspan(header_.data_offset, header_.data_bytes);
  }

 private:
  NpyFile(std::unique_ptr<const MappedFile> file, NpyHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}

  std::unique_ptr<const MappedFile> file_;
  NpyHeader header_;
};

}  // namespace muster
