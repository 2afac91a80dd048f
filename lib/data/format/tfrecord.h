// Reads the records of TFRecord files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/data/file/data_file.h"

namespace muster {

// A record is: length (u64), masked CRC-32C of the length (u32), data, masked CRC-32C of the data
// (u32). All numbers are little-endian.
inline constexpr int64_t kTfrecordHeaderBytes = 12;
inline constexpr int64_t kTfrecordFooterBytes = 4;

// Returns whether the last four bytes are the checksum of the bytes before them. Requires: at least
// four bytes.
bool HasSoundFooter(absl::Span<const std::byte> data_and_footer);

// Appends a record to the content of a file.
void AppendTfrecord(absl::string_view data, std::string& file);

// Finds the records of a file, one after the other, and checks their lengths. Not thread-safe.
//
// Reads 256 KiB at once while records are small, and only the headers of large records. A pread()
// of 12 cached bytes takes as long as the next 4 KiB of a larger one. But a disk that must seek
// delivers more than that, so headers are read alone only after a record of 32 KiB.
class TfrecordScanner {
 public:
  // `field` begins the message of an error (see data_fault.h). Requires: `file` outlives it.
  TfrecordScanner(const DataFile& file, absl::string_view field);

  // Goes to the next record. Returns false at the end of the file. Blocks. After an error no other
  // method may be called. Errors:
  // - DATA_DAMAGED if the header's checksum differs, a record has more than 1 GiB, or the file ends
  //   within a record. All records after that cannot be found.
  // - DATA_INVALID if the file is compressed. The message has the command to decompress it.
  // - those of DataFile::Read()
  absl::StatusOr<bool> Next();

  // The present record. Requires: Next() returned true.
  int64_t record() const { return record_; }  // its number, from 0
  int64_t offset() const { return offset_; }  // of its data
  int32_t bytes() const { return bytes_; }    // of its data

  enum class Check { kNone, kChecksum };
  // Reads the data of the present record. They are valid until the next call of Next(). Returns
  // DATA_DAMAGED if the checksum is read and differs; Next() works nevertheless.
  absl::StatusOr<absl::Span<const std::byte>> Data(Check check);

 private:
  absl::Status Damaged(int64_t record, int64_t offset, absl::string_view message) const;
  bool IsInWindow(int64_t offset, int64_t bytes) const;
  // Returns these bytes of the file. Reads `ahead` of them at once if the window lacks some.
  absl::StatusOr<const std::byte*> Find(int64_t offset, int64_t bytes, int64_t ahead);

  const DataFile& file_;
  const std::string field_;
  int64_t record_ = -1;
  int64_t offset_ = 0;
  int32_t bytes_ = 0;
  int64_t next_ = 0;  // where the next header begins

  // The part of the file that is in memory.
  int64_t window_offset_ = 0;
  int64_t window_bytes_ = 0;
  int64_t window_capacity_ = 0;
  std::unique_ptr<std::byte[]> window_;
};

}  // namespace muster
