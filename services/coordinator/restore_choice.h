// Which checkpoint a generation of a job starts from.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/muster/v1/job.pb.h"
#include "services/coordinator/state_folder.h"
#include "services/coordinator/store.h"

namespace muster {

struct RestoreChoice {
  std::string restore;  // as JobPlan.restore; "": initial values
  int64_t first_step = 0;
  // The job's own checkpoints that were passed over, newest first. None is a checkpoint any more:
  // each was set aside.
  struct Damaged {
    int64_t step = 0;
    std::string what;  // names the file
  };
  std::vector<Damaged> damaged;
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
// DATA_LOSS (reason "CHECKPOINT_DAMAGED"): none of the job's own is sound, or the one is not that
// somebody chose for it; the message names the file, what is wrong with it and which others are
// sound. Nothing is set aside then. CANCELLED: `watch.stop` said so. Any other error is the disk's,
// and no verdict on a checkpoint.
absl::StatusOr<RestoreChoice> ChooseRestore(const v1::Job& record, const JobOrigin& origin,
                                            const StateFolder& folder,
                                            const RestoreWatch& watch = {});

// Where a checkpoint lies that a plan or an origin names: the folder of a job's checkpoint (the
// state folder may have been moved since it was written), or a path as it is.
std::string PathOfRestore(absl::string_view restore, const StateFolder& folder);

}  // namespace muster
