// Describes the last checkpoint of a job, by its record.
#pragma once

#include <cstdint>
#include <string>

#include "proto/muster/v1/job.pb.h"

namespace muster {

// Returns the step of the job's last checkpoint, or -1 if it has none.
int64_t CommittedStep(const v1::Job& record);

// Returns from where the job continues without its shards: its last checkpoint, "net-1@50", or "its
// beginning (it has no checkpoint)".
std::string WhereItGoesOn(const v1::Job& record);

// Returns advice for the user of a job that has ended: how a new job continues from its last
// checkpoint, or that it has none. The text begins with ". " and has no period at its end.
std::string AdviceToResume(const v1::Job& record);

}  // namespace muster
