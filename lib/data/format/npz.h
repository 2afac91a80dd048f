// Reads NumPy's .npz files: zip archives of .npy files.
//   Source: PKWARE, "APPNOTE.TXT", version 6.3.3, sections 4.3 to 4.5; NumPy, "numpy.savez"
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/data/file/data_file.h"
#include "lib/data/format/npy.h"

namespace muster {

// A file in the archive, as the directory describes it.
struct ZipMember {
  std::string name;
  uint16_t flags = 0;
  uint16_t method = 0;
  uint32_t crc = 0;
  int64_t bytes = 0;         // of the content
  int64_t stored_bytes = 0;  // in the archive
  int64_t header_offset = 0;
  int64_t limit = 0;  // the offset of what follows in the archive

  bool is_stored() const { return method == 0; }
  bool is_deflated() const { return method == 8; }
};

// Immutable; threads may share it. Errors are those of DataFile, and DATA_INVALID or DATA_TRUNCATED
// with the file and the member.
class NpzFile {
 public:
  // Reads the directory. Members lie in the file and do not overlap.
  static absl::StatusOr<NpzFile> Open(const std::string& path, absl::string_view field);

  const std::shared_ptr<const DataFile>& file() const { return file_; }
  const std::vector<ZipMember>& members() const { return members_; }  // in order of offset

  // An array that can be read by position.
  struct Array {
    NpyHeader header;    // data_offset counts from the begin of the archive
    int64_t offset = 0;  // of the .npy file in the archive
    int64_t bytes = 0;   // of the .npy file
    uint32_t crc = 0;    // of the .npy file
  };

  // Finds the array that numpy.load() gives for `name`. It must be stored without compression.
  // Checks the CRC of small ones. An error begins with `field`; a name that is absent lists those
  // that exist.
  absl::StatusOr<Array> Find(absl::string_view name, absl::string_view field) const;

  // Returns the offset of a member's content. Reads its local header.
  absl::StatusOr<int64_t> ContentOffset(const ZipMember& member, absl::string_view field) const;

  // Returns "/data/a.npz: array 'images'", for messages.
  std::string PlaceOf(absl::string_view name) const;

 private:
  NpzFile(std::shared_ptr<const DataFile> file, std::vector<ZipMember> members)
      : file_(std::move(file)), members_(std::move(members)) {}

  std::shared_ptr<const DataFile> file_;
  std::vector<ZipMember> members_;
};

// Returns DATA_DAMAGED if the bytes have another CRC than the archive says.
absl::Status CheckCrc(uint32_t expected, absl::Span<const std::byte> bytes,
                      const std::string& place, int64_t offset, absl::string_view field);

}  // namespace muster
