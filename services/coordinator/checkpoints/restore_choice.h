// Which checkpoint a generation of a job starts from.
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
  // The job's own checkpoints that were passed over, newest first.
  struct PassedOver {
    int64_t step = 0;
    std::string what;        // names the file, and the system's error where there is one
    bool set_aside = false;  // it is damaged, and no checkpoint any more; else it lies where it lay
  };
  std::vector<PassedOver> passed_over;
};

// Either may be null.
struct RestoreWatch {
  std::function<bool()> stop;     // nobody waits for the choice any more
  std::function<void()> damaged;  // hears of each that is, whatever comes of the choice
};

// The newest of the job's own checkpoints that is sound to the last byte; a job that has none yet
// starts where its origin says, which must be sound too. Reads all of that checkpoint, at one to
// two gigabytes a second: outside of every lock.
//
// A newer one is passed over for one of two reasons. It is damaged: then it is set aside, unless it
// cannot be renamed. Or it cannot be read now, which is no verdict: EIO, EACCES or ESTALE when a
// file is opened. That one stays as it is, since it may be readable again tomorrow. Where none is
// sound nothing is touched, so that a disk that cannot be read at all takes no checkpoint away.
//
// DATA_LOSS (reason "CHECKPOINT_DAMAGED"): all of the job's own are damaged, or the one is that
// somebody chose for it; the message names the file, what is wrong with it and which others are
// sound. CANCELLED: `watch.stop` said so. RESOURCE_EXHAUSTED: this process lacks descriptors or
// memory; try again. Any other error is the disk's (reason "STORAGE_FAILED"): none is sound, and
// this says why the newest of those cannot be read that may be.
absl::StatusOr<RestoreChoice> ChooseRestore(const v1::Job& record, const JobOrigin& origin,
                                            const StateFolder& folder,
                                            const RestoreWatch& watch = {});

// Where a checkpoint lies that a plan or an origin names: the folder of a job's checkpoint (the
// state folder may have been moved since it was written), or a path as it is.
std::string PathOfRestore(absl::string_view restore, const StateFolder& folder);

}  // namespace muster
