// Checks that the jobs folder is the one that belongs to the state folder.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/coordinator/store/state_folder.h"

namespace muster {

// STATE_DIR/jobs may be a volume of its own. If it is not mounted, or another volume is, every
// checkpoint would look deleted. Therefore jobs/folder.id repeats the id of the state folder.
//
// `with_checkpoints`: ids of the jobs that have checkpoints. A jobs folder without an id gets one
// if this list is empty, or if the folder has checkpoints of some of these jobs. An older version
// created such a folder. A state folder without an id takes the id of its jobs folder.
//
// If an id cannot be written, this logs a warning, and the next call tries again. Returns
// FAILED_PRECONDITION (reason "JOBS_NOT_MOUNTED") if the folder is a different one.
absl::Status CheckJobsFolder(const StateFolder& folder,
                             const std::vector<std::string>& with_checkpoints);

// Accepts the present jobs folder: gives it the id of the state folder. Requires: the caller has
// the store, so that no other process assigns ids at the same time. Returns UNAVAILABLE or another
// code (reason "STATE_DIR_FAILED") if an id cannot be written.
absl::Status AdoptJobsFolder(const StateFolder& folder);

}  // namespace muster
