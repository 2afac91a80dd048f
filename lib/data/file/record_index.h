// Records where each sample lies in its files, for formats such as TFRecord and tar.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace muster {

// A file that the index covers.
struct IndexedFile {
  std::string path;
  int64_t bytes = 0;
  int64_t modified_ns = 0;
  int64_t samples = 0;
};

// Immutable; threads may share it. Takes 12 bytes for each place and 4 for each label. An index
// that was loaded is mapped from its file, so the processes of a host share its memory.
class RecordIndex {
 public:
  static constexpr int32_t kPlaceBytesMax = 1 << 30;

  // A run of bytes in one file. A sample has `slots` of them: one record, or the members of a tar
  // sample. `bytes` is -1 and `offset` 0 if the sample lacks the member.
  struct Place {
    int32_t file = 0;
    int32_t bytes = 0;
    int64_t offset = 0;
  };

  // Collects places, file by file and in the order of samples. Thread-compatible.
  class Builder {
   public:
    // `key` says how the samples are found in the files: the source and the fields of its spec that
    // matter. Each sample has `slots` places and `labels` numbers. Both are 0..64.
    Builder(std::string key, int slots, int labels);
    // Starts the next file. All samples until the next call are of this file.
    void AddFile(std::string path, int64_t bytes, int64_t modified_ns);
    struct Run {
      int64_t offset = 0;
      int32_t bytes = 0;  // < 0: the sample lacks this member
    };
    // Adds a sample. Requires: sizes as given above; at most kPlaceBytesMax for each place.
    void Add(absl::Span<const Run> places, absl::Span<const int32_t> labels);
    std::shared_ptr<const RecordIndex> Build() &&;

   private:
    std::string key_;
    int slots_;
    int labels_;
    std::vector<IndexedFile> files_;
    std::vector<int64_t> offsets_;
    std::vector<int32_t> bytes_;
    std::vector<int32_t> label_values_;
  };

  // Loads the index of these files from `folder`, if a file there has this key, these paths, sizes
  // and times, and a sound checksum. Returns NOT_FOUND otherwise, so that the caller builds it.
  // Ignores `samples` of the files. Reads the whole index.
  static absl::StatusOr<std::shared_ptr<const RecordIndex>> Load(
      const std::string& folder, absl::string_view key, absl::Span<const IndexedFile> files);

  // Writes the index into `folder`, under a name made from key and paths. Makes the folder if it is
  // missing. Replaces an older index in one step, also if other processes save it meanwhile.
  // Returns UNAVAILABLE with the path and the cause, and then leaves the older one.
  absl::Status Save(const std::string& folder) const;

  virtual ~RecordIndex() = default;

  int64_t samples() const { return samples_; }
  int slots() const { return slots_; }
  int labels() const { return labels_; }
  absl::Span<const IndexedFile> files() const { return files_; }

  // Returns the bytes of the files for each sample, on average. Requires: samples() > 0.
  int64_t mean_sample_bytes() const;

  // Returns the number of the first sample of a file, or of the files behind it if it has none.
  int64_t first_sample(int file) const { return first_samples_[file]; }

  // Requires: 0 <= sample < samples(), 0 <= slot < slots(). O(log files).
  Place at(int64_t sample, int slot = 0) const;
  int32_t label(int64_t sample, int label = 0) const;

  // A hash of the names (without folders) and sizes of the files, of the sizes of the places, and
  // of the labels. Equal for copies of the data on other machines. 32 hexadecimal digits.
  const std::string& fingerprint() const { return fingerprint_; }

 protected:
  class Stored;

  RecordIndex() = default;

  std::string key_;
  int slots_ = 0;
  int labels_ = 0;
  int64_t samples_ = 0;
  std::vector<IndexedFile> files_;
  std::vector<int64_t> first_samples_;      // of each file, ascending
  absl::Span<const int64_t> offsets_;       // samples * slots
  absl::Span<const int32_t> bytes_;         // samples * slots
  absl::Span<const int32_t> label_values_;  // samples * labels
  std::string fingerprint_;
};

}  // namespace muster
