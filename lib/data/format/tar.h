// Finds the members of tar files without reading their bytes.
//   Source: POSIX.1-2017, "pax", sections "ustar Interchange Format" and "pax Interchange Format";
//   GNU tar manual, "Basic Tar Format" (long names, base-256 numbers)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/data/file/data_file.h"

namespace muster {

struct TarMember {
  // The name as the archive has it, which may be anything: it is a key and no path. Valid until the
  // reader's next call.
  absl::string_view name;
  int64_t number = 0;  // from 0, over all members of the archive
  int64_t offset = 0;  // of its bytes in the file
  int64_t bytes = 0;
};

// Reads the headers of an archive in order. Thread-compatible. Memory is bounded, for any archive.
//
// Knows ustar, the format before it, GNU's long names and pax records. Archives that were joined by
// `cat` are read to the end. Headers of small members are read together, in large pieces, and those
// of large members one by one.
class TarReader {
 public:
  // `field` begins the message of an error.
  TarReader(std::shared_ptr<const DataFile> file, absl::string_view field);

  // Returns the next regular file of the archive, or nullopt at its end. Skips folders, links and
  // devices. Blocks. After an error the reader may not be used. Errors:
  // - DATA_INVALID: a compressed archive, or a member of a kind that is not supported (sparse, or
  //   continued in another archive).
  // - DATA_DAMAGED: a header that is not as its format says, with member and offset.
  // - DATA_TRUNCATED: the file ends in a member, or before the mark of the archive's end.
  absl::StatusOr<std::optional<TarMember>> Next();

  // Returns the bytes of the member that Next() returned last. Reads no file if it is small and
  // near its header. Requires: the caller accepts its size.
  absl::StatusOr<std::string> ReadBytes(const TarMember& member) const;

 private:
  // The contents of extended headers, which describe the next member.
  struct Extension {
    std::optional<std::string> long_name;
    std::optional<std::string> path;
    std::optional<int64_t> size;
    bool is_sparse = false;
  };

  // Returns the 512 bytes at position_, or fewer if the file ends.
  absl::StatusOr<absl::string_view> ReadBlock();
  // Reads the bytes of an extended header.
  absl::StatusOr<std::string> ReadText(int64_t bytes);
  absl::Status ReadExtension(char kind, int64_t bytes);
  absl::Status ReadRecords(absl::string_view text, char kind);
  absl::Status CheckInside(int64_t bytes) const;
  absl::string_view NameOf(absl::string_view block);
  absl::Status Damaged(absl::string_view message) const;

  const std::shared_ptr<const DataFile> file_;
  const std::string field_;
  int64_t position_ = 0;  // of the next header
  int64_t header_ = 0;    // of the header that is being read
  int64_t number_ = 0;
  bool has_end_ = false;  // the last block was zero
  Extension extension_;
  bool is_extended_ = false;
  std::string name_;

  std::vector<std::byte> buffer_;
  int64_t buffer_offset_ = 0;
  int64_t buffer_bytes_ = 0;
  int64_t piece_bytes_;           // of the last read
  bool has_near_header_ = false;  // a header followed closely since the last large member
};

}  // namespace muster
