// Opens the files of an index as they are read.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "lib/data/file/data_file.h"
#include "lib/data/file/record_index.h"

namespace muster {

// Keeps files open. All objects of a process together keep up to a quarter of the descriptors that
// it may have. Opens the others for each call. Thread-safe.
class IndexedFiles {
 public:
  // `field` begins the message of an error (see data_fault.h).
  IndexedFiles(std::shared_ptr<const RecordIndex> index, std::string field);
  ~IndexedFiles();
  IndexedFiles(const IndexedFiles&) = delete;
  IndexedFiles& operator=(const IndexedFiles&) = delete;

  // Returns a file of the index. Blocks if it must open it. Returns DATA_INVALID if its size or
  // time is another one than when it was indexed. The file is valid as long as this object.
  absl::StatusOr<std::shared_ptr<const DataFile>> Get(int file) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::shared_ptr<const RecordIndex> index_;
  const std::string field_;
  const int64_t kept_max_;  // by the process
  mutable absl::Mutex mu_;
  mutable std::vector<std::shared_ptr<const DataFile>> kept_ ABSL_GUARDED_BY(mu_);
  // The kept files by number; null: the file is not kept. Readers need no lock.
  mutable std::vector<std::atomic<const DataFile*>> by_number_;
};

}  // namespace muster
