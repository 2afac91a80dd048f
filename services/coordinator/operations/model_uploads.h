// Model files that clients send, for jobs with model.external.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "lib/checkpoint/disk_file.h"

namespace muster {

// Keeps the files in one folder, each under the name of its content. A job names a file by
// "uploads/<SHA-256>.safetensors" (IsUploadedModel). Creating a job copies the values of its file,
// so a file is needed only until then. Thread-safe. Errors of the disk have the reasons of
// StorageError().
class ModelUploads {
 public:
  // How long a file stays that no job names.
  static constexpr absl::Duration kKept = absl::Hours(24);

  // The folder is created by the first upload.
  explicit ModelUploads(std::string folder) : folder_(std::move(folder)) {}

  // A file that a client sends. Its destructor deletes the file, unless Commit() returned OK. One
  // thread at a time may use it.
  class Upload {
   public:
    ~Upload();
    Upload(const Upload&) = delete;
    Upload& operator=(const Upload&) = delete;

    // Appends a part. Returns INVALID_ARGUMENT (reason "INVALID_REQUEST") if the part, or the file,
    // is too large.
    absl::Status Write(absl::string_view content);
    // Returns the file's path for a job, durably. Reads the whole file; calls `caller_gone` now and
    // then, and returns CANCELLED if it returns true.
    absl::StatusOr<std::string> Commit(const std::function<bool()>& caller_gone);

   private:
    friend class ModelUploads;
    Upload(std::string folder, DiskFile file)
        : folder_(std::move(folder)), file_(std::move(file)), path_(file_.path()) {}

    const std::string folder_;
    DiskFile file_;
    std::string path_;  // of the file to delete; "" after Commit()
    int64_t bytes_ = 0;
  };

  absl::StatusOr<std::unique_ptr<Upload>> Begin() const;

  // Deletes the files that are older than kKept, except those for which `is_named` returns true.
  // `is_named` gets the path for a job.
  void RemoveOld(absl::Time now, const std::function<bool(const std::string&)>& is_named) const;
  // Deletes what a crash left of unfinished uploads. Requires: there are no uploads.
  void RemoveUnfinished() const;

 private:
  const std::string folder_;
};

}  // namespace muster
