// The coordinator's state folder: the store, the folders of jobs and the values of models.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

// Paths in the folder, and operations on whole job folders.
// Thread-safe. Errors have the reason "STATE_DIR_FAILED".
//
//   coordinator.db                    the store, if it is SQLite.
//   folder.id                         the id of this folder, for a store outside of it.
//   jobs/folder.id                    the same id, see CheckJobsFolder().
//   jobs/ID/metrics.jsonl             every step of a job.
//   jobs/ID/checkpoints/              see docs/checkpoint_format.md.
//   jobs/ID.deleted/                  a deleted job, while its files are removed.
//   models/                           parameter values from model files.
//   uploads/                          model files from clients, see ModelUploads.
class StateFolder {
 public:
  // Creates the folder if it is missing and makes its path absolute. Created folders, here and
  // below, survive a power cut.
  static absl::StatusOr<StateFolder> Open(const std::string& path);

  std::string store() const { return path_ + "/coordinator.db"; }
  std::string models() const { return path_ + "/models"; }
  std::string uploads() const { return path_ + "/uploads"; }
  std::string jobs() const { return path_ + "/jobs"; }
  std::string job(const std::string& id) const { return jobs() + "/" + id; }
  std::string checkpoints(const std::string& id) const { return job(id) + "/checkpoints"; }
  std::string metrics_log(const std::string& id) const { return job(id) + "/metrics.jsonl"; }

  // Returns the id of this folder, and creates it at the first call. All processes that use the
  // folder get the same id.
  absl::StatusOr<std::string> Id() const;

  struct JobFolder {
    std::string id;
    uint64_t number = 0;  // the number at the end of `id`
  };
  static constexpr uint64_t kJobNumberMax = 1'000'000'000'000;
  // Returns all job folders, whatever the store knows, in no order, including those set aside.
  // Ignores names with a number above kJobNumberMax.
  absl::StatusOr<std::vector<JobFolder>> JobFolders() const;

  absl::Status MakeJob(const std::string& id) const;
  // Deletion has two steps, because the second one takes long. After SetJobAside() the job's files
  // are out of sight, even after a power cut. Both do nothing if the job has no folder.
  absl::Status SetJobAside(const std::string& id) const;
  void RemoveJobSetAside(const std::string& id) const;
  // Undoes SetJobAside().
  void BringJobBack(const std::string& id) const;
  // Removes the folders that a crash left after SetJobAside().
  void RemoveAllSetAside() const;

 private:
  explicit StateFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace muster
