// Whether the folder of the jobs is the one that the state folder has always had.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/coordinator/store/state_folder.h"

namespace muster {

// STATE_DIR/jobs may be a volume of its own. Where that is not mounted, or another one is, every
// checkpoint would be taken for gone. So it has the id of the state folder too, in jobs/folder.id.
//
// Gives it one that has none, if the store knows of no checkpoint (`with_checkpoints`: the ids of
// the jobs that have some) or those of some of these jobs are there: it is of an older version
// then. A state folder that has no id itself takes that of its jobs over. What cannot be written
// now is a warning: the next one to ask does it. FAILED_PRECONDITION (reason "JOBS_NOT_MOUNTED"):
// it is not the one.
absl::Status CheckJobsFolder(const StateFolder& folder,
                             const std::vector<std::string>& with_checkpoints);

// From now on the one that is there is the one. For who has the store: nobody else gives the
// folders ids meanwhile. UNAVAILABLE and others (reason "STATE_DIR_FAILED"): it cannot be written.
absl::Status AdoptJobsFolder(const StateFolder& folder);

}  // namespace muster
