// Where the coordinator keeps what must survive it: the store, the jobs' folders, models' values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

// Paths, and what is done to whole folders. Thread-safe; errors have the reason "STATE_DIR_FAILED".
//
//   coordinator.db                    the store, where it is SQLite
//   folder.id                         which folder this is, for a store that lies elsewhere
//   jobs/ID/metrics.jsonl             every step of a job
//   jobs/ID/checkpoints/              see docs/checkpoint_format.md
//   jobs/ID.deleted/                  of a deleted job, on its way out
//   models/                           values that models' files brought along
class StateFolder {
 public:
  // Makes the folder if it is missing and makes its path absolute. A folder that was made survives
  // a power cut, here and below.
  static absl::StatusOr<StateFolder> Open(const std::string& path);

  std::string store() const { return path_ + "/coordinator.db"; }
  std::string models() const { return path_ + "/models"; }
  std::string jobs() const { return path_ + "/jobs"; }
  std::string job(const std::string& id) const { return jobs() + "/" + id; }
  std::string checkpoints(const std::string& id) const { return job(id) + "/checkpoints"; }
  std::string metrics_log(const std::string& id) const { return job(id) + "/metrics.jsonl"; }

  // Made when it is first asked for, and the same for every process that has this folder.
  absl::StatusOr<std::string> Id() const;

  struct JobFolder {
    std::string id;
    uint64_t number = 0;  // at its end
  };
  static constexpr uint64_t kJobNumberMax = 1'000'000'000'000;
  // Those that are there, whatever the store knows, in no order; of jobs that are set aside as
  // well. What has a larger number at its end is no job's.
  absl::StatusOr<std::vector<JobFolder>> JobFolders() const;

  absl::Status MakeJob(const std::string& id) const;
  // In two steps, since the second takes its time: after the first nobody finds the job's files,
  // not even after a power cut. A job without a folder has none to remove.
  absl::Status SetJobAside(const std::string& id) const;
  void RemoveJobSetAside(const std::string& id) const;
  // Instead of the second: the job stays.
  void BringJobBack(const std::string& id) const;
  // What a crash left between the two.
  void RemoveAllSetAside() const;

 private:
  explicit StateFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace muster
