// Chooses the checkpoint from which a generation of a job starts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/muster/v1/job.pb.h"
#include "services/coordinator/store/state_folder.h"
#include "services/coordinator/store/store.h"

namespace muster {

struct RestoreChoice {
  std::string restore;  // as JobPlan.restore; "": initial values
  int64_t first_step = 0;
  // The fingerprint of the data that trained the checkpoint, if its job had the same `data:` as
  // this one. "": unknown.
  std::string data_fingerprint = {};
  bool is_own = false;  // a checkpoint of this job
  // The job's own checkpoints that were skipped, newest first.
  struct PassedOver {
    int64_t step = 0;
    std::string what;  // names the file and, if there is one, the system's error
    // It is damaged and was renamed, so it no longer counts; otherwise it was not touched.
    bool set_aside = false;
  };
  std::vector<PassedOver> passed_over;
};

// Callbacks of ChooseRestore(). Either may be null.
struct RestoreWatch {
  std::function<bool()> stop;     // returns true if the caller no longer waits
  std::function<void()> damaged;  // called for each damaged checkpoint, whatever the result
};

// Returns the newest of the job's own checkpoints that is completely intact. A job without one
// starts from its origin, which must be intact, too. Reads the whole checkpoint, at one to two
// gigabytes per second.
// Requires: the caller holds no lock.
//
// Skips a newer checkpoint for one of two reasons. If it is damaged, it is set aside (renamed),
// unless the rename fails. If it cannot be read now (EIO, EACCES or ESTALE on opening a file), it
// is left as it is, because it may be readable later. If none is intact, nothing is renamed, so
// that an unreadable disk loses no checkpoint.
//
// Returns DATA_LOSS (reason "CHECKPOINT_DAMAGED") if all of the job's own checkpoints are damaged,
// or if the one that a user chose is. The message names the file, the damage, and the intact
// checkpoints.
// Returns CANCELLED if `watch.stop` returned true.
// Returns RESOURCE_EXHAUSTED if this process lacks descriptors or memory; try again.
// Returns another error of the disk (reason "STORAGE_FAILED") if none is intact and at least one
// cannot be read. The message tells why the newest of these cannot be read.
absl::StatusOr<RestoreChoice> ChooseRestore(const v1::Job& record, const JobOrigin& origin,
                                            const StateFolder& folder,
                                            const RestoreWatch& watch = {});

// Returns the path of a checkpoint that a plan or an origin names: the folder of a job's checkpoint
// (the state folder may have been moved since), or a path as it is.
std::string PathOfRestore(absl::string_view restore, const StateFolder& folder);

}  // namespace muster
